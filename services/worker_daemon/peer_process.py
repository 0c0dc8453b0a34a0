"""The process at the other end of a Unix socket: when it ends, nothing of ours is mapped there any more."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Self

_CREDENTIALS = struct.Struct("3i")
_FD = struct.Struct("i")
# Linux 6.5; it knows processes of other containers too, and none that got the pid later.
_SO_PEERPIDFD = 77


def peer_pid(sock: socket.socket) -> int:
    """Of the process that connected, as the system tells it; 0: it lives in a container that we cannot look into."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[0])


class PeerProcess:
    """Watches the process that connected `sock`; make it while that connection lives."""

    def __init__(self, sock: socket.socket) -> None:
        self.pid = peer_pid(sock)
        try:
            self._fd: int = _FD.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _FD.size))[0]
        except OSError:
            self._fd = _opened(self.pid)

    @classmethod
    def of(cls, pid: int) -> Self:
        """Watches a process that is known by its pid."""
        made = cls.__new__(cls)
        made.pid, made._fd = pid, _opened(pid)
        return made

    @property
    def is_seen(self) -> bool:
        """Whether its end can be waited for."""
        return self._fd >= 0

    async def exited(self) -> None:
        """Returns when the process has ended, at once if it cannot be seen."""
        if self._fd < 0:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fd)

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _opened(pid: int) -> int:
    try:
        return os.pidfd_open(pid) if pid else -1
    except ProcessLookupError:
        return -1  # it has ended
