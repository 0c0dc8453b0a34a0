"""The packages behind a cell, as people name them: by the cell's names and imports, and by the objects it needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from looseleaf.recipe.packages import NEVER_IMPORTED, star_modules_for, top_package
from looseleaf.recipe.recipe import Analysis

# Packages whose objects hold objects of others: who restores one needs all of them.
_BUILT_ON: Final[dict[str, tuple[str, ...]]] = {
    "torchvision": ("torch", "numpy", "PIL"),
    "torchaudio": ("torch",),
    "torchtext": ("torch",),
    "torchmetrics": ("torch",),
    "torch_geometric": ("torch", "numpy"),
    "timm": ("torch", "torchvision"),
    "clip": ("torch", "torchvision"),
    "whisper": ("torch", "numpy"),
    "transformers": ("torch", "tokenizers", "numpy", "accelerate", "huggingface_hub"),
    "diffusers": ("torch", "transformers", "numpy"),
    "peft": ("torch", "transformers"),
    "trl": ("torch", "transformers"),
    "accelerate": ("torch",),
    "sentence_transformers": ("torch", "transformers"),
    "fastai": ("torch", "fastcore", "torchvision", "pandas", "numpy"),
    "pytorch_lightning": ("torch",),
    "lightning": ("torch",),
    "segment_anything": ("torch", "torchvision", "numpy"),
    "datasets": ("pyarrow", "pandas", "numpy"),
    "evaluate": ("datasets",),
    "jax": ("jaxlib", "numpy"),
    "flax": ("jax",),
    "optax": ("jax",),
    "haiku": ("jax",),
    "tensorflow": ("numpy", "keras"),
    "keras": ("tensorflow", "numpy"),
    "tensorflow_datasets": ("tensorflow",),
    "tensorflow_hub": ("tensorflow",),
    "pandas": ("numpy",),
    "matplotlib": ("numpy",),
    "scipy": ("numpy",),
    "sklearn": ("numpy", "scipy"),
    "xgboost": ("numpy", "scipy"),
    "lightgbm": ("numpy", "scipy"),
    "catboost": ("numpy",),
    "seaborn": ("matplotlib", "pandas"),
    "cupy": ("numpy",),
    "cudf": ("cupy", "rmm", "numpy", "pandas", "pyarrow"),
    "cuml": ("cupy", "cudf"),
    "dask_cudf": ("cudf", "dask"),
    "dask_cuda": ("dask", "distributed"),
    "skimage": ("numpy", "scipy"),
    "cv2": ("numpy",),
}


@dataclass(frozen=True, slots=True)
class CellPackages:
    """Top-level packages, those of the standard library included.

    `named`: of import statements and of the import-bound names that are read. `through_objects`: further ones that the
    objects which the cell needs may be made of, more rather than too few.
    """

    named: frozenset[str]
    through_objects: frozenset[str]


def cell_packages(analysis: Analysis) -> CellPackages:
    """Packages of a cell by its text and the session's log; the session's own modules count as packages here."""
    facts, closure = analysis.facts, analysis.closure
    bodies = (code.imports for binding in facts.bindings for code in binding.codes)
    modules = facts.modules.union(closure.named_modules, facts.star_imports, *bodies)
    modules |= frozenset(star_modules_for(closure, analysis.star_modules))
    named = _tops(modules)
    behind = _tops(closure.modules) | named if closure.state else _tops(closure.modules)
    return CellPackages(named, _with_foundations(behind) - named)


def _tops(modules: Iterable[str]) -> frozenset[str]:
    return frozenset(top_package(m) for m in modules if not m.startswith(".")) - NEVER_IMPORTED


def _with_foundations(packages: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    todo = list(packages)
    while todo:
        package = todo.pop()
        if package not in found:
            found.add(package)
            todo.extend(_BUILT_ON.get(package, ()))
    return frozenset(found)
