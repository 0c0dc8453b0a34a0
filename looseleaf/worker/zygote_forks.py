"""How a zygote forks: so that the daemon and not the zygote is the parent of what comes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from looseleaf.protocol.frames import close_fds
from looseleaf.worker._forks import fork_orphan

if TYPE_CHECKING:
    from looseleaf.worker.child import Birth

_LIBC: Final = ctypes.CDLL(None)


def fork_grandchild(enter: Callable[[], NoReturn]) -> int:
    """Runs `enter` in a new process whose parent is the nearest subreaper, the daemon; returns its pid.

    So the daemon and not the zygote learns how the worker ends. Raises OSError.
    """
    _flush_everything()
    child = fork_orphan()
    if child == 0:
        try:
            enter()
        finally:
            os._exit(0)
    return child


def stand_alone(birth: Birth) -> None:
    """The forked process has a session and standard streams of its own, and of its zygote's descriptors the channel."""
    os.setsid()
    for number, fd in enumerate(birth.stdio_fds):
        os.dup2(fd, number, inheritable=True)
    # Not closerange: where no limit of open files is set it may have a billion to try.
    close_fds({int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, birth.channel_fd})


def _flush_everything() -> None:
    # What lies in a buffer at a fork is written twice. Libraries may keep the streams that were there before ours.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    _LIBC.fflush(None)
