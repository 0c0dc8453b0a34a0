"""The control channel of a zygote: one msgpack map per datagram, with fds, over a SOCK_SEQPACKET socket."""

from __future__ import annotations

import array
import select
import socket
from collections.abc import Sequence
from typing import Final

from looseleaf.errors import InvalidArgument, Timeout
from looseleaf.protocol.channel import claim_fds, peer_closed
from looseleaf.protocol.frames import Message, close_fds, pack, unpack_map
from looseleaf.units import KIB

DATAGRAM_BYTES_MAX: Final = 64 * KIB
DATAGRAM_FDS_MAX: Final = 8
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(DATAGRAM_FDS_MAX * array.array("i").itemsize)


class ControlSocket:
    """Datagrams over `sock`, which it owns; for one thread at a time. A zygote answers in order, one at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends one datagram; the caller keeps its `fds`.

        Raises InvalidArgument `FRAME_TOO_LARGE` or `TOO_MANY_FDS`, Unavailable `PEER_CLOSED`.
        """
        data = pack(message)
        if len(data) > DATAGRAM_BYTES_MAX:
            text = f"a control message of {len(data)} bytes was not sent; at most {DATAGRAM_BYTES_MAX}"
            raise InvalidArgument("FRAME_TOO_LARGE", text)
        if len(fds) > DATAGRAM_FDS_MAX:
            raise InvalidArgument("TOO_MANY_FDS", f"{len(fds)} fds on one control message; at most {DATAGRAM_FDS_MAX}")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], ancillary)
        except ConnectionError as error:
            raise peer_closed(f"the zygote's control channel ended: {error}") from error

    def recv(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The next datagram and its fds (close-on-exec), which are the caller's to close.

        Raises Unavailable `PEER_CLOSED` at the end, Timeout `RECEIVE_TIMEOUT`, InvalidArgument `MESSAGE_MALFORMED` or
        `FDS_TRUNCATED` for this datagram only: the next one may be good.
        """
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                raise Timeout("RECEIVE_TIMEOUT", "no control message came in the given time")
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                DATAGRAM_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError as error:
            raise peer_closed(f"the zygote's control channel ended: {error}") from error
        fds = claim_fds(ancillary, flags)
        try:
            if flags & socket.MSG_TRUNC:
                raise InvalidArgument("MESSAGE_MALFORMED", "a control message is longer than a datagram may be")
            if not data:
                raise peer_closed("the other side of a zygote's control channel is gone")
            message = unpack_map(data)
            if not isinstance(message.get("t"), str):
                raise InvalidArgument("MESSAGE_MALFORMED", "a control message has no text under 't'")
        except Exception:
            close_fds(fds)
            raise
        return message, fds

    def forget(self) -> None:
        """Gives up the fd without closing it; for a child that closes all fds itself."""
        self._sock.detach()

    def close(self) -> None:
        """Closes the socket: a zygote on the other side exits."""
        self._sock.close()
