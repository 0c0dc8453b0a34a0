"""Finds pickles that name something of the session's module: such a name means nothing in another process."""

from __future__ import annotations

import pickletools
from typing import Final

from looseleaf.checkpoint.by_name import SESSION_MODULE
from looseleaf.dirty_tracker import hash128

_TEXT_OPCODES: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
# How a pickle writes the module's name; without it nothing can be looked up there.
SESSION_TEXT: Final = b"\x8c" + bytes([len(SESSION_MODULE)]) + SESSION_MODULE.encode()
_MEMO_READS: Final = frozenset({"BINGET", "LONG_BINGET"})
# Units whose answer is kept: most are the same from save to save, and reading a pickle is slow.
ANSWERS_MAX: Final = 1024
_answers: dict[bytes, bool] = {}


def names_session_global(data: bytes) -> bool:
    """True if a pickle of the unit `data` looks something up in the session's module by name."""
    unit_hash = hash128(data)
    found = _answers.get(unit_hash)
    if found is None:
        if len(_answers) >= ANSWERS_MAX:
            _answers.clear()
        found = _answers[unit_hash] = _looks_up_session(data)
    return found


def _looks_up_session(data: bytes) -> bool:
    start = 1
    memo: dict[int, str | None] = {}
    while start < len(data):
        texts: list[str | None] = []
        for opcode, argument, position in pickletools.genops(data[start:]):
            name = opcode.name
            if name in _TEXT_OPCODES:
                texts.append(str(argument))
            elif name == "MEMOIZE":
                memo[len(memo)] = texts[-1] if texts else None
                continue
            elif name in _MEMO_READS:
                texts.append(memo.get(int(str(argument))))
            elif name == "STACK_GLOBAL":
                if len(texts) >= 2 and texts[-2] == SESSION_MODULE:
                    return True
                texts = []
            elif name == "GLOBAL" and str(argument).split(" ")[0] == SESSION_MODULE:
                return True
            elif name not in ("PROTO", "FRAME"):
                texts = []
            if name == "STOP":
                start += (position or 0) + 1
                break
        else:
            break
    return False
