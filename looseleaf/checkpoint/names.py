"""Which names of a notebook's namespace are not part of its state; kernel and worker must agree on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MethodType
from typing import Any, Final

# What IPython itself keeps per process: input history, the tables of inputs, outputs and directories.
# `_7`, the result of cell 7, and `_`, the last one, are variables like any other.
_SHELLS_OWN: Final = re.compile(r"_i{1,3}|_i\d+|_ih|_oh|_dh")
# A person's names as soon as they are bound to something else.
_TABLES: Final = {"In": "_ih", "Out": "_oh"}
LAST_RESULTS: Final = ("_", "__", "___")
_MISSING: Final = object()


class HiddenNames:
    """Tells whether a name is no part of the session's state, for an IPython shell that has run no cell yet.

    Hidden are the shell's own names: of those that it has now, such as `open` and `exit`, the ones that a person has
    not bound anew, and of the last results the ones before the first.
    """

    def __init__(self, shell: Any) -> None:
        self._namespace: dict[str, Any] = shell.user_ns
        self._initial = {**shell.user_ns_hidden, **self._namespace}
        self._known = frozenset({*self._initial, *_TABLES, *LAST_RESULTS})

    def __call__(self, name: str) -> bool:
        """Whether `name` is hidden now."""
        if name.startswith("_") and _SHELLS_OWN.fullmatch(name):
            return True
        if name not in self._known:
            return False
        value = self._namespace.get(name, _MISSING)
        if name in _TABLES:
            return value is self._namespace.get(_TABLES[name], _MISSING)
        if name in LAST_RESULTS:
            return type(value) is str and not value
        return name in self._initial and (value is _MISSING or _is_same(value, self._initial[name]))

    def visible(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are not hidden. Asked for all of a session before each cell: most need no call each."""
        known = self._known
        return [name for name in names if (name[:1] != "_" and name not in known) or not self(name)]


def _is_same(one: Any, other: Any) -> bool:
    # `get_ipython` is made anew when the namespace is reset.
    return one is other or (type(one) is type(other) is MethodType and one == other)
