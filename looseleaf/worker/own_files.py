"""The person's own modules in a worker: files beside the notebook, which may change between two cells (design §4)."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path

from looseleaf.checkpoint.loaded_files import LOADED_FILES
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.new_modules import NEW_MODULES
from looseleaf.recipe.name_facts import facts_of_root
from looseleaf.recipe.packages import modules_in


class OwnFiles:
    """Which own modules this process has imported since its fork, and whether their files have changed since."""

    def __init__(self) -> None:
        # A zygote imports nothing of a person's.
        self._not_own = frozenset(NEW_MODULES.names())

    def note(self) -> None:
        """Takes down what was imported or reloaded since the last time; between cells, before files change again."""
        for name in NEW_MODULES.names():
            module = None if name in self._not_own or name.startswith("looseleaf.") else sys.modules.get(name)
            if isinstance(module, types.ModuleType):
                LOADED_FILES.state_of(name, module)

    def changed(self) -> list[str]:
        """Modules whose files are others than they were when they were imported here, sorted."""
        return LOADED_FILES.changed()


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
