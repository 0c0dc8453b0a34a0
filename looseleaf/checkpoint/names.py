"""Which names of a notebook's namespace are not part of its state; kernel and worker must agree on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import Any

# What IPython itself keeps per process: input history, the last three results, the tables of inputs and outputs.
# `_7`, the result of cell 7, is a variable like any other.
_SHELLS_OWN = re.compile(r"_{1,3}|_i{1,3}|_i\d+|_ih|_oh|_dh|In|Out|_exit_code")


def is_hidden(name: str, initial: Set[str]) -> bool:
    """Whether `name` is no part of the session's state: the shell's own, or in `initial`, before any cell."""
    return name in initial or _SHELLS_OWN.fullmatch(name) is not None


def hidden_names(shell: Any) -> Callable[[str], bool]:
    """`is_hidden` for an IPython shell as it is now, before its first cell."""
    initial = frozenset(shell.user_ns) | frozenset(shell.user_ns_hidden)
    return lambda name: is_hidden(name, initial)
