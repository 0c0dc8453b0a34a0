"""A socket of this daemon alone, at a path where an earlier one may have left its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from looseleaf.errors import Unavailable

log = structlog.get_logger()

ACCEPT_RETRY_S: Final = 1.0


def refuse_taken(path: str) -> None:
    """Raises Unavailable `SOCKET_TAKEN` if another daemon answers at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise Unavailable("SOCKET_TAKEN", f"another daemon listens on {path}")


def listening(path: str, backlog: int) -> socket.socket:
    """A non-blocking Unix socket of mode 0600 that listens at `path`; whoever owns it unlinks the path.

    Raises Unavailable `SOCKET_TAKEN` if another daemon answers there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        refuse_taken(path)
        if os.path.exists(path):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def accept_all(sock: socket.socket, take: Callable[[socket.socket], None]) -> None:
    """Gives every connection to `take`, which owns it from its return on, until cancelled.

    Where `take` or the system has no room for one (OSError, such as too many open files), others are accepted later.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _address = await loop.sock_accept(sock)
            try:
                take(connection)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            log.error("connection_not_accepted", socket=sock.getsockname(), error=error.strerror)
            await asyncio.sleep(ACCEPT_RETRY_S)
