"""Exit statuses of every process below the daemon, which is their subreaper (import-cache study §2.6)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from looseleaf.units import KIB

# Children that ended before anybody asked for them: a worker may die before its zygote has told its pid.
EARLY_EXITS_MAX = 256
EARLY_EXIT_S = 30.0
STATUS_UNKNOWN: Final = "ended, status unknown: its host's daemon had been restarted while it ran"
# Ended children whose peak of memory is remembered.
PEAKS_MAX = 256


class Reaper:
    """Reaps all children, known or not, and tells who waits for one how it ended.

    Nothing else in the process may wait for children while a Reaper runs, or signal one by its pid: after the reaping
    the pid may be another process's.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._early: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._peaks: OrderedDict[int, int] = OrderedDict()

    def start(self) -> None:
        """Begins to reap; call on the running event loop's main thread."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()

    def stop(self) -> None:
        """Ends reaping."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def exit_status(self, pid: int) -> asyncio.Future[int]:
        """Resolves to the process's exit code, or minus the signal that killed it; ask as soon as the pid is known."""
        future = self._waiting.get(pid)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            # Kept: the pool and the import cache both ask for a worker that was reaped before either knew its pid.
            code, ended_s = self._early.get(pid, (0, float("-inf")))
            if time.monotonic() - ended_s <= EARLY_EXIT_S:
                future.set_result(code)
            else:
                self._waiting[pid] = future
        return future

    def peak_bytes(self, pid: int) -> int:
        """The most memory that an ended child had at once, resident; 0 if that is not known."""
        return self._peaks.get(pid, 0)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Sends a signal to a child whose exit status somebody waits for; does nothing if it has ended."""
        if pid in self._waiting:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def reap(self) -> None:
        """Takes every ended child off the process table."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._waiting:
                self._end_group(pid)
            _pid, status, usage = os.wait4(pid, 0)
            # Linux counts it in KiB.
            self._peaks[pid] = usage.ru_maxrss * KIB
            if len(self._peaks) > PEAKS_MAX:
                self._peaks.popitem(last=False)
            self._ended(pid, os.waitstatus_to_exitcode(status))

    @staticmethod
    def _end_group(pid: int) -> None:
        """Kills what a process left in its own group: forked children of a worker still map the host arena.

        Before the reaping, while the number cannot be another group's.
        """
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # it leads no group, or only itself is left of it

    def _ended(self, pid: int, code: int) -> None:
        if (future := self._waiting.pop(pid, None)) is not None:
            if not future.done():
                future.set_result(code)
            return
        self._early[pid] = code, time.monotonic()
        if len(self._early) > EARLY_EXITS_MAX:
            self._early.popitem(last=False)


def describe_exit(code: int | None, killed_why: str = " (often the system ran out of memory)") -> str:
    """How a process ended, for people: "was killed by SIGKILL", "exited with code 3".

    `code` None: only its parent knows, which is gone. `killed_why`: what is known of a SIGKILL's cause, as
    MemoryGuard.explain gives it.
    """
    if code is None:
        return STATUS_UNKNOWN
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {"SIGKILL": killed_why, "SIGSEGV": " (a crash in native code)"}.get(name, "")
    return f"was killed by {name}{hint}"
