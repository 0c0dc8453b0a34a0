"""Import closure: which modules a worker imports before the cell runs, and which are files beside the notebook."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from looseleaf.recipe.facts import CellFacts
from looseleaf.recipe.graph import Closure
from looseleaf.recipe.session_view import SessionView

# Answers with the relative path of the session's own file that a module comes from, or None for an installed one.
LocalModule = Callable[[str], str | None]

_BUILTINS = frozenset(dir(builtins)) | {"get_ipython", "display", "In", "Out", "__name__", "__file__", "__doc__"}
NEVER_IMPORTED = frozenset({"", "__main__", "__mp_main__", "__future__", "builtins", "ipykernel_launcher"})


@dataclass(frozen=True, slots=True)
class ImportClosure:
    """`modules`: importable, submodules included. `files`: relative paths of the session's own modules. Sorted."""

    modules: tuple[str, ...]
    files: tuple[str, ...]


def import_closure(facts: CellFacts, closure: Closure, view: SessionView, local: LocalModule) -> ImportClosure:
    """Modules of names read, of import statements, and of the classes of every object in the closure."""
    found = set(closure.modules) | facts.modules
    found.update(star_modules_for(closure, view.log.star_modules))
    found.update(facts.star_imports)
    for name in facts.loads & facts.imports:
        found.update(b.module for b in facts.bindings if b.name == name and b.kind == "import")
    return split_local(found, local)


def star_modules_for(closure: Closure, star_modules: Iterable[str]) -> Iterable[str]:
    """The modules of star imports that a closure may take names from: any name that nobody bound."""
    return star_modules if closure.unresolved - _BUILTINS else ()


def split_local(modules: Iterable[str], local: LocalModule) -> ImportClosure:
    """Separates installed modules from files of the session; relative and unimportable names are left out."""
    imports: set[str] = set()
    files: set[str] = set()
    for module in modules:
        if module in NEVER_IMPORTED or module.startswith("."):
            continue
        path = local(module)
        if path is None:
            imports.add(module)
        else:
            files.add(path)
    return ImportClosure(tuple(sorted(imports)), tuple(sorted(files)))


def no_local_modules(_module: str) -> str | None:
    """For callers that cannot see the session's folder: every module is an installed one."""
    return None


def written_modules(paths: Iterable[str]) -> LocalModule:
    """Modules that the session wrote itself by `%%writefile`."""
    by_module = {}
    for path in paths:
        pure = PurePosixPath(path)
        if pure.suffix == ".py" and not pure.is_absolute() and ".." not in pure.parts:
            parts = pure.with_suffix("").parts
            by_module[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = str(pure)
    return by_module.get


def modules_in(folder: Path) -> LocalModule:
    """Modules whose files lie under `folder`, the session's working directory; looks at the disk when asked."""

    def find(module: str) -> str | None:
        parts = module.split(".")
        for depth in range(len(parts), 0, -1):
            base = folder.joinpath(*parts[:depth])
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                if candidate.is_file():
                    return str(candidate.relative_to(folder))
        # A folder without __init__.py is a package too if the module asked for lies in it.
        return None

    return find


def first_match(*finders: LocalModule) -> LocalModule:
    """Asks each finder in turn."""

    def find(module: str) -> str | None:
        return next((path for finder in finders if (path := finder(module)) is not None), None)

    return find


def top_package(module: str) -> str:
    """`torch` of `torch.utils.data`."""
    return module.partition(".")[0]
