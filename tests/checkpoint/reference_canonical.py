"""What the native canonical form of pickles is to be, written out in Python."""

from __future__ import annotations

import struct
from typing import Final

_FRAME, _STOP, _MEMOIZE, _GET, _LONG_GET, _PROTO = 0x95, 0x2E, 0x94, 0x68, 0x6A, 0x80
# Bytes of the argument of opcodes that have one of fixed size.
_FIXED: Final = {
    0x4A: 4, 0x4B: 1, 0x4D: 2, 0x47: 8, _PROTO: 1, _FRAME: 8, _GET: 1, _LONG_GET: 4, 0x82: 1, 0x83: 2, 0x84: 4,
}  # fmt: skip
# Bytes of the length that comes before an argument of variable size.
_COUNTED: Final = {0x8A: 1, 0x8B: 4, 0x43: 1, 0x42: 4, 0x8E: 8, 0x96: 8}
_TEXTS: Final = {0x8C: 1, 0x58: 4, 0x8D: 8}
# Opcodes of old protocols, whose arguments end with a line: never written by protocol 5.
_LINES: Final = frozenset(b"cFgiILpPSVqr")
_HEAD: Final = b"\x80\x05"


def canonical(data: bytes) -> bytes:
    """The same pickle, or run of pickles with one memo, in canonical form."""
    made = _Rewriter(data).run()
    return data if made is None else made


class _Rewriter:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._places: dict[bytes, int] = {}
        self._new_index: list[int] = []
        self._count = 0
        self._pickles: list[bytes] = []
        self._out: list[bytes] = []

    def run(self) -> bytes | None:
        """None if an opcode of another protocol turns up."""
        data, at, end = self._data, 0, len(self._data)
        start = 0
        while at < end:
            code = data[at]
            if code in _TEXTS:
                width = _TEXTS[code]
                size = int.from_bytes(data[at + 1 : at + 1 + width], "little")
                after = at + 1 + width + size
                self._out.append(data[start:at])
                start = at = self._text(data[at:after], after)
                continue
            if code == _MEMOIZE:
                self._new_index.append(self._count)
                self._count += 1
                at += 1
            elif code in (_GET, _LONG_GET):
                self._out.append(data[start:at])
                after = at + 1 + _FIXED[code]
                self._out.append(_get(self._new_index[int.from_bytes(data[at + 1 : after], "little")]))
                start = at = after
            elif code in (_FRAME, _PROTO):
                self._out.append(data[start:at])
                start = at = at + 1 + _FIXED[code]
            elif code == _STOP:
                self._out.append(data[start : at + 1])
                self._close()
                start = at = at + 1
            elif code in _FIXED:
                at += 1 + _FIXED[code]
            elif code in _COUNTED:
                width = _COUNTED[code]
                at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
            elif code in _LINES:
                return None
            else:
                at += 1
        return b"".join(self._pickles)

    def _text(self, literal: bytes, after: int) -> int:
        """Writes a text, or where it is in the memo already; returns where to read on."""
        if after >= len(self._data) or self._data[after] != _MEMOIZE:
            self._out.append(literal)
            return after
        known = self._places.get(literal)
        if known is None:
            self._places[literal] = self._count
            self._new_index.append(self._count)
            self._count += 1
            self._out.append(literal + b"\x94")
        else:
            self._new_index.append(known)
            self._out.append(_get(known))
        return after + 1

    def _close(self) -> None:
        body = b"".join(self._out)
        self._out = []
        # One frame each: the reader then asks its file once.
        self._pickles.append(_HEAD + b"\x95" + struct.pack("<Q", len(body)) + body)


def _get(index: int) -> bytes:
    return bytes((_GET, index)) if index < 256 else b"j" + struct.pack("<I", index)
