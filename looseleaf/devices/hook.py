"""Run a callback once `torch` has been imported, now or whenever the person imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class PostImportHook(importlib.abc.MetaPathFinder):
    """A finder at the head of `sys.meta_path` that only watches for one module; starts no thread.

    `callback` runs in the importing thread after the module's body ended without an error, before the import statement
    returns. If it raises, the import raises.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def start(self) -> None:
        """Call back at once if the module is there already and complete, else watch for it."""
        module = sys.modules.get(self._name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._callback()
            return
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = self._spec_of_those_behind(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self)
        return spec

    def _spec_of_those_behind(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        # Only those behind: another watcher of the same module asks us, and would be asked by us again without end.
        finders = list(sys.meta_path)
        start = finders.index(self) + 1 if self in finders else 0
        for finder in finders[start:]:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                return spec  # type: ignore[no-any-return]
        return None

    def fire(self) -> None:
        """The module is complete."""
        self.stop()
        self._callback()


class _CallingLoader(importlib.abc.Loader):
    """The real loader, and then the hook. Leaves no trace of itself on the module."""

    def __init__(self, loader: importlib.abc.Loader, hook: PostImportHook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._hook.fire()
