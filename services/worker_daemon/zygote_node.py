"""One tail node of the import cache: a zygote that another one forked (paper §3.3)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from looseleaf.errors import LooseLeafError, Timeout
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.zygote import import_seconds
from looseleaf.services.worker_daemon.zygote_channel import ZygoteChannel

# A node that does not answer in this time is ended and its parent asked (study §5); a base, whose end costs everybody
# more, has longer.
NODE_FORK_TIMEOUT_S = 2.0
BUILD_TIMEOUT_S = 60.0


class Forking(Protocol):
    """Zygote or ZygoteNode."""

    async def fork(
        self, title: str, env: dict[str, str], fds: Sequence[int], kind: str = "worker", imports: Sequence[str] = ()
    ) -> int:
        """See Zygote.fork."""
        ...

    async def pss_bytes(self) -> int | None:
        """See Zygote.pss_bytes."""
        ...

    def kill(self) -> None:
        """See Zygote.kill."""
        ...


class ZygoteNode:
    """A process that serves until it is killed; nobody starts it again. `exited` resolves when it has ended."""

    def __init__(self, pid: int, channel: ZygoteChannel, reaper: Reaper) -> None:
        self.pid = pid
        self.seconds: dict[str, float] = {}
        self.modules: frozenset[str] = frozenset()
        self.private_bytes = 0
        self.exited = reaper.exit_status(pid)
        self._channel = channel
        self._reaper = reaper

    @classmethod
    async def build(
        cls, parent: Forking, title: str, imports: Sequence[str], log_path: str, reaper: Reaper
    ) -> ZygoteNode:
        """Forks it and waits until it is ready.

        Raises Unavailable `ZYGOTE_FAILED` with the `verdict` and `culprit` if it may not serve, Timeout
        `ZYGOTE_TIMEOUT` with the `name` of the import that it was at, and as `fork`; then no process is left.
        """
        with ExitStack() as theirs_too:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs_too.callback(theirs.close)
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs_too.callback(os.close, null)
            output = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            theirs_too.callback(os.close, output)
            channel = ZygoteChannel(ours)
            try:
                pid = await parent.fork(title, {}, [theirs.fileno(), null, output, output], "zygote", imports)
            except BaseException:
                # If one was forked after all, it ends on this.
                channel.close()
                raise
        node = cls(pid, channel, reaper)
        try:
            node._take(await channel.ready(BUILD_TIMEOUT_S))
        except BaseException:
            node.kill()
            await asyncio.shield(node.exited)
            raise
        return node

    def _take(self, ready: dict[str, Any]) -> None:
        self.seconds = import_seconds(fields.sequence(ready, "imports"))
        self.modules = frozenset(fields.texts(ready, "modules", []))
        self.private_bytes = fields.integer(ready, "private_bytes", 0)

    async def fork(
        self, title: str, env: dict[str, str], fds: Sequence[int], kind: str = "worker", imports: Sequence[str] = ()
    ) -> int:
        """As Zygote.fork, of a process that may have ended."""
        body = {"title": title, "env": env, "kind": kind, "imports": list(imports)}
        try:
            return await self._channel.fork(body, fds, NODE_FORK_TIMEOUT_S)
        except Timeout:
            self.kill()
            raise

    async def pss_bytes(self) -> int | None:
        """As Zygote.pss_bytes."""
        if self._channel.closed or self._channel.busy:
            return None
        try:
            return await self._channel.pss_bytes(NODE_FORK_TIMEOUT_S)
        except Timeout:
            # It would not fork either; found here, it costs no cell that time.
            self.kill()
            return None
        except LooseLeafError:
            return None

    def kill(self) -> None:
        """Ends it at once; what was forked from it lives on."""
        self._channel.close()
        self._reaper.signal(self.pid, signal.SIGKILL)
