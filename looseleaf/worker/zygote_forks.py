"""How a zygote forks: twice, so that the daemon and not the zygote is the parent of what comes."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from looseleaf.protocol.frames import close_fds

if TYPE_CHECKING:
    from looseleaf.worker.child import Birth

_CHILD_PID: Final = struct.Struct("<ii")


def fork_grandchild(enter: Callable[[], NoReturn]) -> int:
    """Runs `enter` in a new process whose parent is the nearest subreaper, the daemon; returns its pid.

    The process in between exits at once, so the daemon and not the zygote learns how the worker ends. Raises OSError.
    """
    _flush_everything()
    read_fd, write_fd = os.pipe()
    try:
        middle = os.fork()
    except OSError:
        close_fds((read_fd, write_fd))
        raise
    if middle == 0:
        try:
            # Whoever ends the zygote's group does not mean a child that has no session of its own yet.
            os.setpgid(0, 0)
            child = os.fork()
            if child == 0:
                enter()
            os.write(write_fd, _CHILD_PID.pack(child, 0))
        except OSError as error:
            os.write(write_fd, _CHILD_PID.pack(0, error.errno or errno.EIO))
        finally:
            os._exit(0)
    os.close(write_fd)
    try:
        data = os.read(read_fd, _CHILD_PID.size)
    finally:
        os.close(read_fd)
        os.waitpid(middle, 0)
    if len(data) != _CHILD_PID.size:
        raise OSError(errno.EIO, "the process between a zygote and its child ended early")
    pid, error_number = _CHILD_PID.unpack(data)
    if pid == 0:
        raise OSError(error_number, os.strerror(error_number))
    return int(pid)


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
    ctypes.CDLL(None).fflush(None)
