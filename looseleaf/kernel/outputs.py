"""`_`, `Out` and `_7` after cells that ran elsewhere (IPython's output cache)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from looseleaf.errors import PreconditionFailed
from looseleaf.recipe.analyze import analyze_cell

# Reading one of these may read any earlier result.
_ANY_RESULT: Final = frozenset({"Out", "_oh"})
_LAST_RESULTS: Final = ("_", "__", "___")
_NUMBERED: Final = re.compile(r"_\d+")
_CACHE: Final = _ANY_RESULT | set(_LAST_RESULTS)


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

    def refuse_elsewhere(self, source: str) -> None:
        """Raises PreconditionFailed `RESULT_CACHE_READ` if a cell for a worker reads the cache, which is here."""
        used = sorted(analyze_cell(source).read_names & _CACHE)
        if used:
            numbers = sorted(self._shell.user_ns["_oh"])
            instead = f"_{numbers[-1]}" if numbers else "a variable"
            text = (
                f"this cell runs on a GPU worker and reads {used[0]!r}, but earlier results are known there by number "
                f"only: write {instead} for the last one; nothing was run"
            )
            raise PreconditionFailed("RESULT_CACHE_READ", text, names=used)

    def names_behind(self, source: str) -> list[str]:
        """Variables that `source` may read by the names of the cache."""
        used = analyze_cell(source).read_names & _CACHE
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
