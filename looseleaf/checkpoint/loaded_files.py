"""From which state of its file each of a person's modules was loaded: the file may have changed since (design §4)."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Final

from looseleaf.checkpoint.by_name import is_library_module


class LoadedFiles:
    """One for each process. A file's state is its time of change and size, as text; empty for what has none."""

    def __init__(self) -> None:
        # By module: the spec, which a reload replaces, and the file's state when this spec was first met.
        self._known: dict[str, tuple[Any, str]] = {}

    def state_of(self, name: str, module: types.ModuleType) -> str:
        """The state of the file when the module was loaded, taken down when it is first asked for after that."""
        known, spec = self._known.get(name), vars(module).get("__spec__")
        if known is None or known[0] is not spec:
            self._known[name] = known = (spec, _state_now(name, module))
        return known[1]

    def changed(self) -> list[str]:
        """Modules whose files are others than they were when they were loaded, sorted."""
        found = []
        for name, (spec, state) in self._known.items():
            module = sys.modules.get(name)
            if module is None or not state or vars(module).get("__spec__") is not spec:
                continue
            if _state_now(name, module) != state:
                found.append(name)
        return sorted(found)


def _state_now(name: str, module: types.ModuleType) -> str:
    file = vars(module).get("__file__")
    if type(file) is not str or is_library_module(name):
        return ""
    try:
        status = os.stat(file)
    except OSError:
        return "gone"
    return f"{status.st_mtime_ns} {status.st_size}"


LOADED_FILES: Final = LoadedFiles()
