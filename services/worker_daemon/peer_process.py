"""The process at the other end of a Unix socket: when it ends, nothing of ours is mapped there any more."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")


class PeerProcess:
    """Watches the process that connected `sock`; make it while that connection lives."""

    def __init__(self, sock: socket.socket) -> None:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        # 0: it lives in a container that this process cannot look into.
        self.pid: int = _CREDENTIALS.unpack(data)[0]
        self._fd = -1
        if self.pid:
            try:
                self._fd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return  # it has ended

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
