"""A socket of this daemon alone, at a path where an earlier one may have left its own."""

from __future__ import annotations

import os
import socket

from looseleaf.errors import Unavailable


def listening(path: str, backlog: int) -> socket.socket:
    """A non-blocking Unix socket of mode 0600 that listens at `path`; whoever owns it unlinks the path.

    Raises Unavailable `SOCKET_TAKEN` if another daemon answers there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if os.path.exists(path):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(path) == 0:
                    raise Unavailable("SOCKET_TAKEN", f"another daemon listens on {path}")
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
