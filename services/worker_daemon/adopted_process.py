"""A worker that another daemon has forked: in the place of a Reaper, for a process that is nobody's child here."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from looseleaf.services.worker_daemon.process_stat import process_ticks


class AdoptedProcess:
    """Tells when the process `pid` ends, never how, and signals it. Make it before its identity is looked at.

    Raises ProcessLookupError if there is none.
    """

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)
        self._pid = pid
        self.ticks = process_ticks(pid)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int | None] = loop.create_future()
        self._killed = False
        loop.add_reader(self._fd, self._end)

    def _end(self) -> None:
        self.close()
        # Its number is no other process's yet, or its group is another's by now.
        if process_ticks(self._pid) in (None, self.ticks):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL if self._killed else None)

    def exit_status(self, _pid: int) -> asyncio.Future[int | None]:
        """Resolves to None when it has ended, since only its parent learns how, unless it was killed from here."""
        return self._ended

    def peak_bytes(self, _pid: int) -> int:
        """Not known."""
        return 0

    def signal(self, _pid: int, number: signal.Signals) -> None:
        """Sends it a signal; does nothing if it has ended."""
        if self._fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)
                self._killed = self._killed or number is signal.SIGKILL

    def close(self) -> None:
        """Ends the watch. Idempotent."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
