"""What keeps the processes of the import cache apart from each other and from the host (design §10; study §4.4).

A zygote gets nothing that is anybody's; a worker gives up what it is not meant to have before its first message.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
from collections.abc import Callable, Collection, MutableMapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from looseleaf.protocol.confinement import Confinement

ZYGOTE_UMASK: Final = 0o077
# Twice what a daemon waits for a probe or a forked zygote: who hangs in an import must not outlive it for ever.
IMPORT_LIMIT_S: Final = 120.0
# Where the system runs out of memory, the cell that took it goes before the services and the notebooks.
WORKER_OOM_SCORE: Final = 300
# Python itself ignores these; everything else goes back to its default, whatever a package made of it.
_PYTHON_IGNORES: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWNET: Final = 0x40000000
_NAME_BYTES_MAX: Final = 15
# Once: each such object is a class of its own.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Where the arguments begin and end, in /proc/self/stat after the command's name.
_ARGUMENTS: Final = slice(45, 47)


def isolate_zygote() -> None:
    """Nobody of this uid can look into this process, no dump of it is written, no file that it makes is for others."""
    os.chdir("/")
    os.umask(ZYGOTE_UMASK)
    _prctl(_PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def end_after(limit_s: float) -> None:
    """The system ends this process by SIGALRM so long from now, whatever it hangs in; 0: not any more.

    No process that it forks has that limit.
    """
    if limit_s:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def undo_imports() -> None:
    """What an import may have changed of a zygote's process is as before; interrupts stay ignored."""
    os.chdir("/")
    os.umask(ZYGOTE_UMASK)
    gc.disable()
    reset_signals(but={signal.SIGINT})


def reset_signals(but: Collection[int] = ()) -> None:
    """Handlers, mask and wakeup descriptor are those of a fresh Python, `but` for some handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *but}:
        usual = signal.SIG_IGN if number in _PYTHON_IGNORES else signal.SIG_DFL
        if signal.getsignal(number) is not usual:
            signal.signal(number, usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def confine_worker(wanted: Confinement, environ: MutableMapping[str, str]) -> None:
    """Gives up what the worker is not meant to have; afterwards it can get nothing back.

    Raises OSError where the system refuses: a worker must not run with more than it was meant to have.
    """
    # Its page tables and descriptors are its own to read, as in any kernel.
    _prctl(_PR_SET_DUMPABLE, 1)
    if wanted.cgroup:
        _write(wanted.cgroup, str(os.getpid()))
    with suppress(OSError):
        # Raising it needs no right; where a container has the file read-only the system picks by size alone.
        _write("/proc/self/oom_score_adj", str(WORKER_OOM_SCORE))
    _limit(resource.RLIMIT_NOFILE, wanted.open_files)
    _limit(resource.RLIMIT_NPROC, wanted.processes)
    if wanted.uid:
        _become(wanted)
        environ.update({"HOME": wanted.home, "USER": wanted.user, "LOGNAME": wanted.user})
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _become(wanted: Confinement) -> None:
    from looseleaf.dirty_tracker import keep_pagemap

    # Afterwards the system may open it no more, and a save would compare all memory.
    keep_pagemap()
    os.setgroups(wanted.groups)
    os.setresgid(wanted.gid, wanted.gid, wanted.gid)
    os.setresuid(wanted.uid, wanted.uid, wanted.uid)
    # The change took it away.
    _prctl(_PR_SET_DUMPABLE, 1)


def _limit(kind: int, wanted: int) -> None:
    if wanted:
        hard = resource.getrlimit(kind)[1]
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (limit, limit))


def leave_the_network() -> bool:
    """No other host can be reached from here on, where this process may decide that; False if nothing has changed."""
    return os.geteuid() == 0 and ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0


def set_title(title: str) -> None:
    """What `ps` shows for this process; siblings all look like their zygote otherwise.

    Without the package setproctitle, which a notebook's environment may lack, a title longer than the arguments that
    the process was started with is cut.
    """
    if (setproctitle := _setproctitle()) is None:
        write_title(title.encode("utf-8", "replace"))
    else:
        setproctitle(title)


@cache
def _setproctitle() -> Callable[[str], None] | None:
    # Once, in the zygote: a search that finds nothing looks through every folder, in each worker again.
    try:
        from setproctitle import setproctitle
    except ImportError:
        return None
    return setproctitle


def write_title(title: bytes) -> None:
    """As `set_title`, by itself."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(title[:_NAME_BYTES_MAX]))
    stat = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    start, end = map(int, stat[_ARGUMENTS])
    # The system reads the arguments from this memory; Python copied them when it started.
    if 0 < start < end:
        room = end - start
        ctypes.memmove(start, title[: room - 1].ljust(room, b"\0"), room)


def _prctl(option: int, value: Any) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
