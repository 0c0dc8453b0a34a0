"""A blocking channel: whole messages with fds over a connected Unix stream socket."""

from __future__ import annotations

import array
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from looseleaf.errors import InvalidArgument, Timeout, Unavailable
from looseleaf.protocol.frames import FRAME_FDS_MAX, FrameReader, Message, close_fds, encode_frame
from looseleaf.units import KIB

RECEIVE_BYTES: Final = 256 * KIB
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(FRAME_FDS_MAX * array.array("i").itemsize)


def peer_closed(what: str = "the other side closed the connection") -> Unavailable:
    """The error for a connection that has ended."""
    return Unavailable("PEER_CLOSED", what)


def receive_some(sock: socket.socket) -> tuple[bytes, list[int]]:
    """What one recvmsg brings; empty bytes at the end of the stream. Received fds are close-on-exec.

    Raises InvalidArgument `FDS_TRUNCATED` if the kernel dropped fds, BlockingIOError on a non-blocking socket.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    except (ConnectionError, ValueError) as error:  # ValueError: closed by us meanwhile
        raise peer_closed(f"the connection broke: {error}") from error
    return data, claim_fds(ancillary, flags)


def claim_fds(ancillary: Iterable[tuple[int, int, bytes]], flags: int) -> list[int]:
    """The fds that a recvmsg brought, now the caller's. Raises InvalidArgument `FDS_TRUNCATED`; none is open then."""
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        close_fds(fds)
        raise InvalidArgument("FDS_TRUNCATED", "fds were lost on the way: this process may have too many files open")
    return list(fds)


def send_some(sock: socket.socket, data: memoryview, fds: Sequence[int]) -> int:
    """Sends a first part of `data`, with `fds` on its first byte, and returns its length. Raises as the socket does."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary)


class Channel:
    """Messages over `sock`, which it owns. `send` may be called from any thread, `recv` from one thread at a time.

    A message cut short by an exception in `send` (a signal handler that raises, a peer that went) ends the stream; what
    the peer sent before that is still received. `ThreadedLink` sends from a thread of its own, where no handler runs.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._reader = FrameReader()
        self._send_lock = threading.RLock()
        self._send_ended = False
        self._closed = False

    def fileno(self) -> int:
        """The socket's fd, for select; bytes may also wait in this object, so ask `recv` first."""
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends one whole message; the caller keeps its `fds`.

        Raises InvalidArgument as `encode_frame` (nothing was sent), Unavailable `PEER_CLOSED`.
        """
        self.send_frame(encode_frame(message, len(fds)), fds)

    def send_frame(self, frame: bytes, fds: Sequence[int] = ()) -> None:
        """Sends a frame made by `encode_frame` for as many `fds`. Raises Unavailable `PEER_CLOSED`."""
        with self._send_lock:
            if self._send_ended:
                raise peer_closed("nothing can be sent any more: the connection has ended")
            view = memoryview(frame)
            done = False
            try:
                while view:
                    sent = send_some(self._sock, view, fds)
                    view, fds = view[sent:], ()
                done = True
            except (OSError, ValueError) as error:
                raise peer_closed(f"the other side closed the connection: {error}") from error
            finally:
                if not done:
                    self._end_stream()

    def recv(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The next message and its fds, which are the caller's to close.

        Raises Unavailable `PEER_CLOSED` at the end of the stream, Timeout `RECEIVE_TIMEOUT` (no byte is lost, call
        again), InvalidArgument if the peer breaks the protocol: close the channel then.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self._reader.next()
            if found is not None:
                return found
            if self._closed:
                raise peer_closed("this side closed the connection")
            if deadline_s is not None:
                self._wait_readable(deadline_s)
            try:
                data, fds = receive_some(self._sock)
            except OSError as error:
                raise peer_closed(f"the connection broke: {error}") from error
            if not data:
                close_fds(fds)
                part = " in the middle of a message" if self._reader.has_partial else ""
                raise peer_closed(f"the other side closed the connection{part}")
            self._reader.feed(data, fds)

    def _wait_readable(self, deadline_s: float) -> None:
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError as error:  # closed meanwhile
            raise peer_closed("this side closed the connection") from error
        remaining_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
        if not poll.poll(remaining_ms):
            raise Timeout("RECEIVE_TIMEOUT", "no message came in the given time")

    def shutdown(self) -> None:
        """Ends the stream in both directions: the peer and a thread blocked in `recv` see its end. Fds stay open."""
        self._closed = True
        self._end_stream()

    def _end_stream(self) -> None:
        self._send_ended = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer was faster

    def close(self) -> None:
        """Ends the stream and closes the socket and all received fds that nobody took. Idempotent."""
        self.shutdown()
        self._sock.close()
        self._reader.close()

    def forget(self) -> None:
        """Closes this process's copy of the socket without ending the stream; for a forked child."""
        self._closed = self._send_ended = True
        self._sock.close()
        self._reader.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
