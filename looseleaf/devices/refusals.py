"""GPU packages that cannot work on a virtual GPU say so by name when they are imported (design §8)."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from looseleaf.errors import Unsupported

REAL_GPU_PACKAGES: frozenset[str] = frozenset(
    {
        "cucim", "cudf", "cugraph", "cuml", "cupy", "cuspatial", "flash_attn", "pycuda", "rmm", "tensorrt", "triton",
    }
)


class VirtualGpuImportError(Unsupported, ImportError):
    """Both: a refusal of LooseLeaf, and what `except ImportError` around an optional import catches."""


class RefusingFinder(importlib.abc.MetaPathFinder):
    """Refuses `REAL_GPU_PACKAGES` that are installed; one that is not fails as anywhere."""

    def start(self) -> None:
        """Look at imports from now on."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Look no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in REAL_GPU_PACKAGES or not self._installed(fullname):
            return None
        raise VirtualGpuImportError(
            "VIRTUAL_GPU_UNSUPPORTED",
            f"{fullname} needs a real GPU; a LooseLeaf virtual GPU runs torch only. Nothing was changed; "
            "use the CPU counterpart (numpy, pandas, scikit-learn), or run where LooseLeaf has GPUs.",
            feature=fullname,
        )

    def _installed(self, fullname: str) -> bool:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and find(fullname, None, None) is not None:
                return True
        return False
