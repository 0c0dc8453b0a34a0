"""Run a callback once a module such as `torch` has been imported, now or whenever the person imports it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final


class LastingFinder(importlib.abc.MetaPathFinder):
    """A finder that is put at the head of `sys.meta_path` once and never leaves it.

    An import that is under way in another thread walks the same list: taking an element out makes it pass over the one
    behind, such as the finder of all files, and fail with a ModuleNotFoundError for what is installed.
    """

    def enter(self) -> None:
        """Be asked from now on. At the head again if somebody else took it out."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def spec_of_those_behind(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """What an import would find without this finder and those before it.

        Only those behind: one before that asks us in the same way would else be asked by us again without end. Nor
        does it matter that one is in the list twice.
        """
        finders = list(sys.meta_path)
        start = finders.index(self) + 1 if self in finders else 0
        for finder in finders[start:]:
            if any(finder is other for other in finders[:start]):
                continue  # two threads entered it at once: it is asked at its first place only
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None else None
            if spec is not None:
                return spec  # type: ignore[no-any-return]
        return None


class _Watcher(LastingFinder):
    """Watches for the modules of all hooks. Each step is atomic: a lock might be held when a process is forked."""

    def __init__(self) -> None:
        # By module, in the order of their start.
        self.hooks: dict[str, list[PostImportHook]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.hooks.get(fullname):
            return None
        spec = self.spec_of_those_behind(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, fullname)
        return spec

    def imported(self, name: str) -> None:
        """The module is complete: its hooks call back. The first that raises ends it; the others wait on."""
        hooks = self.hooks.get(name, [])
        while True:
            try:
                # In one step: another thread may stop the last one at any time.
                hook = hooks.pop(0)
            except IndexError:
                return
            hook.callback()


WATCHER: Final = _Watcher()


class PostImportHook:
    """Waits for one module; starts no thread.

    `callback` runs in the importing thread after the module's body ended without an error, before the import statement
    returns. If it raises, the import raises.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self.callback = callback

    @property
    def waits(self) -> bool:
        """Whether it was started, and neither stopped nor has called back."""
        return self in WATCHER.hooks.get(self._name, ())

    def start(self) -> None:
        """Call back at once if the module is there already and complete, else watch for it."""
        module = sys.modules.get(self._name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self.callback()
            return
        WATCHER.hooks.setdefault(self._name, []).append(self)
        WATCHER.enter()

    def stop(self) -> None:
        """Watch no longer."""
        try:
            WATCHER.hooks.get(self._name, []).remove(self)
        except ValueError:
            return  # it was not started, or has called back


class _CallingLoader(importlib.abc.Loader):
    """The real loader, and then the hooks. Leaves no trace of itself on the module."""

    def __init__(self, loader: importlib.abc.Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        WATCHER.imported(self._name)
