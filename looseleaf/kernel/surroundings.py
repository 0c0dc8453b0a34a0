"""What a recipe depends on besides the session's state: what is installed, and the person's own modules (design §4)."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint.by_name import is_library_module
from looseleaf.environment import Environment
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.packages import modules_in
from looseleaf.recipe.partial import imported_in

# More modules of a person's own than this are imported as installed ones are.
LOCAL_MODULES_MAX: Final = 512


class Surroundings:
    """Looks at names, paths and times only; imports and runs nothing. From any thread."""

    def __init__(self) -> None:
        # Before a cell can change the path: equal ids must mean equal folders.
        self._environment = Environment.here()
        # Files of imported modules that are not installed; of most modules nothing is asked twice.
        self._own_files: dict[str, str] = {}
        self._looked_at: set[str] = set()

    def tell(self, source: str) -> dict[str, Any]:
        """What a request about a cell says of this process, as docs/protocol.md has it."""
        return {"environment_id": self._environment.identify(), "local_modules": self.local_modules(source)}

    def local_modules(self, source: str) -> dict[str, str]:
        """Modules that lie in the working directory, imported here or by `source`, with their relative paths."""
        try:
            folder = os.getcwd()
        except OSError:
            return {}  # it was deleted: nothing can be imported from it any more
        self._look_at_new_modules()
        found = {
            name: os.path.relpath(file, folder) for name, file in list(self._own_files.items())
            if file.startswith(folder + os.sep) and name in sys.modules
        }  # fmt: skip
        facts = analyze_cell(source)
        named = facts.modules.union(imported_in(source), *(code.imports for b in facts.bindings for code in b.codes))
        find = modules_in(Path(folder))
        to_come = {name: find(name) for name in _with_parents(named) if name not in sys.modules}
        found.update({name: path for name, path in to_come.items() if path})
        return dict(list(found.items())[:LOCAL_MODULES_MAX])

    def _look_at_new_modules(self) -> None:
        for name in set(sys.modules) - self._looked_at:
            self._looked_at.add(name)
            module = sys.modules.get(name)
            # Not by getattr, which makes some modules import others.
            file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
            if type(file) is str and not is_library_module(name):
                self._own_files[name] = file


def _with_parents(names: Iterable[str]) -> set[str]:
    """`a.b.c` with `a` and `a.b`, which are imported first."""
    return {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)}
