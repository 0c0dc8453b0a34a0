"""The person's own modules in a worker: files beside the notebook, which may change between two cells (design §4)."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from looseleaf.checkpoint.by_name import is_library_module
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.recipe.name_facts import facts_of_root
from looseleaf.recipe.packages import modules_in

Stamp = tuple[int, int]


class OwnFiles:
    """Which own modules this process has imported since its fork, and from which state of their files."""

    def __init__(self) -> None:
        # A zygote imports nothing of a person's.
        self._not_own = frozenset(sys.modules)
        # By module: the spec, which a reload replaces, and what the file was when this spec was first met.
        self._known: dict[str, tuple[Any, Stamp]] = {}

    def note(self) -> None:
        """Takes down what was imported or reloaded since the last time; between cells, before files change again."""
        for name, module in list(sys.modules.items()):
            if name in self._not_own or name.startswith("looseleaf.") or not isinstance(module, types.ModuleType):
                continue
            known, spec = self._known.get(name), vars(module).get("__spec__")
            if (known is None or known[0] is not spec) and (stamp := _stamp(name, module)) is not None:
                self._known[name] = (spec, stamp)

    def changed(self) -> list[str]:
        """Modules whose files are others than they were when they were imported here, sorted."""
        found = []
        for name, (spec, stamp) in self._known.items():
            module = sys.modules.get(name)
            if module is not None and vars(module).get("__spec__") is spec and _stamp(name, module) != stamp:
                found.append(name)
        return sorted(found)


def needs_own_module(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Those of `names` whose objects are made of own modules that are not imported here: making them runs these."""
    find = modules_in(Path.cwd())
    missing: dict[str, bool] = {}
    found = []
    for name in names:
        unit_id = manifest.roots.get(name)
        for module in () if unit_id is None else facts_of_root(manifest, unit_id).modules:
            if module not in missing:
                missing[module] = module not in sys.modules and find(module) is not None
            if missing[module]:
                found.append(name)
                break
    return found


def _stamp(name: str, module: types.ModuleType) -> Stamp | None:
    """Time of the last change and size of the module's file; (0, 0) for one that went, None for what is installed."""
    file = vars(module).get("__file__")
    if type(file) is not str or is_library_module(name):
        return None
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
