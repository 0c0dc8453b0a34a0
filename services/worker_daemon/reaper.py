"""Exit statuses of every process below the daemon, which is their subreaper (import-cache study §2.6)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections import OrderedDict

_PR_SET_CHILD_SUBREAPER = 36
EARLY_EXITS_MAX = 256


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children. Raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Reaper:
    """Reaps all children, known or not, and tells who waits for one how it ended.

    Nothing else in the process may wait for children while a Reaper runs.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._early: OrderedDict[int, int] = OrderedDict()

    def start(self) -> None:
        """Begins to reap; call on the running event loop's main thread."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()

    def stop(self) -> None:
        """Ends reaping."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def exit_status(self, pid: int) -> asyncio.Future[int]:
        """Resolves to the process's exit code, or minus the signal that killed it."""
        future = self._waiting.get(pid)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            if pid in self._early:
                future.set_result(self._early.pop(pid))
            else:
                self._waiting[pid] = future
        return future

    def reap(self) -> None:
        """Takes every ended child off the process table."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if (future := self._waiting.pop(pid, None)) is not None:
                if not future.done():
                    future.set_result(code)
            else:
                self._early[pid] = code
                if len(self._early) > EARLY_EXITS_MAX:
                    self._early.popitem(last=False)


def describe_exit(code: int) -> str:
    """How a process ended, for people: "was killed by SIGKILL", "exited with code 3"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {"SIGKILL": " (often the system ran out of memory)", "SIGSEGV": " (a crash in native code)"}.get(name, "")
    return f"was killed by {name}{hint}"
