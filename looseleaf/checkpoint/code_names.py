"""Which session variables code reads by name when it runs (design §3: unit headers)."""

from __future__ import annotations

import dis
import types
from functools import lru_cache
from typing import Final

_READS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@lru_cache(maxsize=8192)
def names_read_by(code: types.CodeType) -> tuple[str, ...]:
    """Global names that `code` and the code nested in it read, in order of first use; builtins are not told apart."""
    found: dict[str, None] = {}
    todo = [code]
    while todo:
        current = todo.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in _READS:
                found[str(instruction.argval)] = None
        todo.extend(const for const in reversed(current.co_consts) if isinstance(const, types.CodeType))
    return tuple(found)
