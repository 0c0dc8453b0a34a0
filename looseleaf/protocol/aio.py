"""The channel for an event loop: as `Channel`, but nothing blocks and slow peers push back on the sender."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.protocol.channel import peer_closed, receive_some, send_some
from looseleaf.protocol.frames import FrameReader, Message, close_fds, duplicate_fds, encode_frame
from looseleaf.units import MIB

# A sender waits while more than this lies unsent; one whole frame may lie on top of it.
OUTGOING_BYTES_MAX: Final = 8 * MIB
# Received messages that nobody took yet; beyond it the socket is not read.
INCOMING_MESSAGES_MAX: Final = 256


@dataclass
class _Outgoing:
    view: memoryview
    fds: list[int] = field(default_factory=list)  # our duplicates, closed once sent


class AsyncChannel:
    """Messages over `sock`, which it owns, on `loop` (default: the running one). All calls on that loop's thread."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop or asyncio.get_running_loop()
        self._reader = FrameReader()
        self._incoming: deque[tuple[Message, list[int]]] = deque()
        self._outgoing: deque[_Outgoing] = deque()
        self._outgoing_bytes = 0
        self._writing = False
        self._reading = False
        self._received = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        # Why nothing more comes in, and why nothing more can be sent.
        self._error: LooseLeafError | None = None
        self._send_error: LooseLeafError | None = None
        self._closed = False
        self._resume_reading()

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait for the peer to read."""
        return self._outgoing_bytes

    @property
    def closed(self) -> bool:
        """Whether nothing more is received."""
        return self._closed or self._error is not None

    async def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queues one whole message, in call order; waits first while `OUTGOING_BYTES_MAX` lie unsent.

        The caller keeps its `fds` and may close them at once. Raises InvalidArgument as `encode_frame`, Unavailable
        `PEER_CLOSED`.
        """
        frame = encode_frame(message, len(fds))
        while self._outgoing_bytes > OUTGOING_BYTES_MAX:  # 0 once the connection has ended
            self._room.clear()
            await self._room.wait()
        self._push(frame, fds)

    def send_now(self, message: Message, fds: Sequence[int] = ()) -> None:
        """As `send`, without waiting for room: for rare small messages outside a coroutine."""
        self._push(encode_frame(message, len(fds)), fds)

    def _push(self, frame: bytes, fds: Sequence[int]) -> None:
        if self._closed:
            raise peer_closed("this side closed the connection")
        if self._send_error is not None:
            raise self._send_error
        self._outgoing.append(_Outgoing(memoryview(frame), duplicate_fds(fds)))
        self._outgoing_bytes += len(frame)
        if not self._writing:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                head = self._outgoing[0]
                sent = send_some(self._sock, head.view, head.fds)
                close_fds(head.fds)
                head.fds = []
                head.view = head.view[sent:]
                self._outgoing_bytes -= sent
                if not head.view:
                    self._outgoing.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock, self._flush)
        except OSError as error:
            self._end_sending(peer_closed(f"the other side closed the connection: {error}"))
            # What the peer sent before it went is still received; this makes sure that an end follows.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            return
        if not self._outgoing and self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
        if self._outgoing_bytes <= OUTGOING_BYTES_MAX:
            self._room.set()

    async def recv(self) -> tuple[Message, list[int]]:
        """The next message and its fds, which are the caller's to close.

        Raises Unavailable `PEER_CLOSED` at the end of the stream, InvalidArgument if the peer breaks the protocol.
        """
        while not self._incoming:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise peer_closed("this side closed the connection")
            self._received.clear()
            await self._received.wait()
        found = self._incoming.popleft()
        if len(self._incoming) < INCOMING_MESSAGES_MAX and not self.closed:
            self._resume_reading()
        return found

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._sock, self._on_readable)
            # Whole frames may lie in the reader already: the socket would never become readable for them.
            self._loop.call_soon(self._take_messages)

    def _on_readable(self) -> None:
        try:
            data, fds = receive_some(self._sock)
            if not data:
                close_fds(fds)
                raise peer_closed()
            self._reader.feed(data, fds)
        except (BlockingIOError, InterruptedError):
            return
        except LooseLeafError as error:
            self._fail(error)
            return
        except OSError as error:
            self._fail(peer_closed(f"the connection broke: {error}"))
            return
        self._take_messages()

    def _take_messages(self) -> None:
        try:
            while len(self._incoming) < INCOMING_MESSAGES_MAX and not self.closed:
                found = self._reader.next()
                if found is None:
                    break
                self._incoming.append(found)
        except InvalidArgument as error:
            self._fail(error)
            return
        if len(self._incoming) >= INCOMING_MESSAGES_MAX and self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)
        if self._incoming:
            self._received.set()

    def _fail(self, error: LooseLeafError) -> None:
        if self._error is None:
            self._error = error
        self._stop_reading()
        self._end_sending(error)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)
        self._received.set()

    def _end_sending(self, error: LooseLeafError) -> None:
        if self._send_error is None:
            self._send_error = error
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
        for item in self._outgoing:
            close_fds(item.fds)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._room.set()

    def close(self) -> None:
        """Drops what is unsent, closes the socket and every received fd that nobody took. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        self._end_sending(peer_closed("this side closed the connection"))
        self._sock.close()
        self._reader.close()
        for _, fds in self._incoming:
            close_fds(fds)
        self._incoming.clear()
