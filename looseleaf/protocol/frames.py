"""Frames of the worker protocol: u32 little-endian length, then one msgpack map; no I/O here.

Everything that comes from the other side is checked before it is used; each way to be wrong has its reason.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgpack

from looseleaf.errors import InvalidArgument
from looseleaf.units import MIB, format_bytes

PROTOCOL_VERSION: Final = 1
# Largest frame body; a batch of units (16 MiB) or of output fits with room to spare.
FRAME_BYTES_MAX: Final = 32 * MIB
# Most fds that ride on one frame.
FRAME_FDS_MAX: Final = 64
# Most received fds that no frame has claimed yet; a peer that sends more is broken.
UNCLAIMED_FDS_MAX: Final = 4 * FRAME_FDS_MAX
HEADER: Final = struct.Struct("<I")

Message = dict[str, Any]


def pack(value: Any) -> bytes:
    """`value` as msgpack. Raises InvalidArgument `MESSAGE_NOT_PLAIN` for anything but None, bool, int (64 bit), float,
    str, bytes, list, tuple and dict."""
    try:
        data: bytes = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument("MESSAGE_NOT_PLAIN", f"a message cannot be sent: {error}") from error
    return data


def unpack(data: bytes | bytearray | memoryview) -> Any:
    """The value of exactly one msgpack item. Raises InvalidArgument `MESSAGE_MALFORMED`."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_ext)
    # A hostile body can also fail inside msgpack's own types: StackError is a ValueError, a bad timestamp overflows.
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidArgument("MESSAGE_MALFORMED", f"a message is not well-formed msgpack: {error}") from error


def _refuse_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not part of the protocol")


def unpack_map(data: bytes | bytearray | memoryview) -> Message:
    """As `unpack`, for a map with text keys. Raises InvalidArgument `MESSAGE_MALFORMED`."""
    value = unpack(data)
    if not isinstance(value, dict):
        raise InvalidArgument("MESSAGE_MALFORMED", f"a message is a {type(value).__name__}, not a map")
    if not all(isinstance(key, str) for key in value):
        raise InvalidArgument("MESSAGE_MALFORMED", "a message has a key that is not text")
    return value


def encode_frame(message: Message, fd_count: int = 0) -> bytes:
    """Header and body of one frame; `fd_count` fds will ride on its first byte.

    Raises InvalidArgument `FRAME_TOO_LARGE`, `TOO_MANY_FDS` or `MESSAGE_NOT_PLAIN`.
    """
    if fd_count > FRAME_FDS_MAX:
        raise InvalidArgument("TOO_MANY_FDS", f"{fd_count} fds on one frame; at most {FRAME_FDS_MAX}", fds=fd_count)
    body = pack({**message, "fds": fd_count} if fd_count else message)
    check_length(len(body))
    return HEADER.pack(len(body)) + body


def check_length(body_bytes: int) -> None:
    """Raises InvalidArgument `FRAME_TOO_LARGE` if a frame's body may not be that long."""
    if body_bytes > FRAME_BYTES_MAX:
        raise InvalidArgument(
            "FRAME_TOO_LARGE",
            f"a message of {format_bytes(body_bytes)} was not passed on; the limit is {format_bytes(FRAME_BYTES_MAX)}",
            size_bytes=body_bytes,
        )


def decode_body(body: bytes | bytearray | memoryview) -> tuple[Message, int]:
    """The message of a frame's body, without its `fds` key, and the number of fds that it claims.

    Raises InvalidArgument `MESSAGE_MALFORMED` if it is no map with text keys, if `t` is no text or `id` no int >= 0.
    """
    message = unpack_map(body)
    if not isinstance(message.get("t"), str):
        raise InvalidArgument("MESSAGE_MALFORMED", "a message has no text under 't'")
    request_id = message.get("id", 0)
    fd_count = message.pop("fds", 0)
    if type(request_id) is not int or request_id < 0:
        raise InvalidArgument("MESSAGE_MALFORMED", "a message's 'id' is not a number >= 0")
    if type(fd_count) is not int or not 0 <= fd_count <= FRAME_FDS_MAX:
        raise InvalidArgument("MESSAGE_MALFORMED", f"a message's 'fds' is not a number from 0 to {FRAME_FDS_MAX}")
    return message, fd_count


class FrameReader:
    """Turns received bytes and fds into messages, in order. Owns the fds until a message takes them."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def feed(self, data: bytes | memoryview, fds: Sequence[int] = ()) -> None:
        """Takes what one receive brought. Raises InvalidArgument `TOO_MANY_FDS`; the fds are then ours all the same."""
        self._buffer += data
        self._fds.extend(fds)
        if len(self._fds) > UNCLAIMED_FDS_MAX:
            raise InvalidArgument("TOO_MANY_FDS", f"the peer sent {len(self._fds)} fds that no message claims")

    def next(self) -> tuple[Message, list[int]] | None:
        """The next whole message and its fds (now the caller's), or None until more bytes come.

        Raises InvalidArgument `FRAME_TOO_LARGE` (before the body is stored), `MESSAGE_MALFORMED` or `FDS_MISSING`; the
        stream cannot be used after that.
        """
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        check_length(length)
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view, view[HEADER.size : end] as body:
            message, fd_count = decode_body(body)
        del self._buffer[:end]
        if fd_count > len(self._fds):
            raise InvalidArgument("FDS_MISSING", f"a message claims {fd_count} fds but {len(self._fds)} came with it")
        return message, [self._fds.popleft() for _ in range(fd_count)]

    @property
    def has_partial(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer)

    def close(self) -> None:
        """Closes the fds that no message took."""
        close_fds(self._fds)
        self._fds.clear()
        self._buffer.clear()


def duplicate_fds(fds: Iterable[int]) -> list[int]:
    """A close-on-exec duplicate of each of `fds`. Raises OSError; none is left open then."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - a failure in between must know what there is
    except OSError:
        close_fds(copies)
        raise
    return copies


def close_fds(fds: Iterable[int]) -> None:
    """Closes each of `fds`; one that is closed already does not stop the others."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue
