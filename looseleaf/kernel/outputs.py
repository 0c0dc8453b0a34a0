"""`_`, `Out` and `_7` after cells that ran elsewhere (IPython's output cache)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

# Reading one of these may read any earlier result.
_ANY_RESULT: Final = frozenset({"Out", "_oh"})
_LAST_RESULTS: Final = ("_", "__", "___")
_NUMBERED: Final = re.compile(r"_\d+")
_NAMES: Final = re.compile(r"\b(_{1,3}|Out|_oh)\b")


class ResultCache:
    """Keeps the kernel's output cache in step with results that workers made; those are variables `_<number>`.

    `shell`: the kernel's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._last: list[str] = []

    def take(self, count: int) -> None:
        """Cell `count` ran on a worker; its result, if it had one, is a variable now."""
        name = f"_{count}"
        if name not in self._shell.user_ns:
            return
        hook, namespace = self._shell.displayhook, self._shell.user_ns
        # A person's own `_`, as of gettext, is left alone, as IPython does.
        ours = all(namespace.get(last) is getattr(hook, last) for last in _LAST_RESULTS)
        hook.___, hook.__, hook._ = hook.__, hook._, namespace[name]
        namespace["_oh"][count] = namespace[name]
        if ours:
            self._last = [name, *self._last][: len(_LAST_RESULTS)]
            self._shell.push(dict(zip(_LAST_RESULTS, (hook._, hook.__, hook.___), strict=True)), interactive=False)

    def names_behind(self, source: str) -> list[str]:
        """Variables that `source` may read by the names of the cache."""
        used = set(_NAMES.findall(source))
        if not used:
            return []
        namespace = self._shell.user_ns
        if used & _ANY_RESULT:
            return [name for name in list(namespace) if _NUMBERED.fullmatch(name)]
        return [name for name in self._last if name in namespace]

    def refresh(self, names: Iterable[str]) -> None:
        """The values of `names` were loaded: the cache shows them instead of their stand-ins."""
        namespace = self._shell.user_ns
        hook = self._shell.displayhook
        for name in names:
            if not _NUMBERED.fullmatch(name):
                continue
            old, value = namespace["_oh"].get(int(name[1:])), namespace[name]
            if old is None or old is value:
                continue
            namespace["_oh"][int(name[1:])] = value
            for last in _LAST_RESULTS:
                if namespace.get(last) is old:
                    namespace[last] = value
                if getattr(hook, last) is old:
                    setattr(hook, last, value)
