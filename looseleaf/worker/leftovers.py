"""What a cell left running: the worker, and with it the GPU, cannot go quietly while it lives."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final

LEFTOVERS_MAX: Final = 32


def leftovers(loop: asyncio.AbstractEventLoop) -> list[dict[str, str]]:
    """Non-daemon threads, child processes and unfinished asyncio tasks of this process, as {kind, name}; at most 32."""
    found = [
        {"kind": "thread", "name": thread.name}
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    found += [{"kind": "process", "name": name} for name in _children()]
    found += [{"kind": "task", "name": _task_name(task)} for task in asyncio.all_tasks(loop) if not task.done()]
    return found[:LEFTOVERS_MAX]


def _children() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            pids = path.read_text().split()
        except OSError:
            continue  # the thread has ended
        names += [name for pid in pids if (name := _process_name(pid))]
    return names


def _process_name(pid: str) -> str:
    """The process's command name, or nothing for one that has ended and only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return "" if rest.split()[:1] == ["Z"] else f"{name} ({pid})"


def _task_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", task.get_name())


def end_group() -> None:
    """Ends all other processes of this one's group: what cells left, when no daemon is there to do it."""
    group, own = os.getpgrp(), os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == own:
            continue
        try:
            if os.getpgid(int(entry)) == group:
                os.kill(int(entry), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or not ours to end


def anonymous_bytes() -> int:
    """Bytes of anonymous memory in this process's page tables, those still shared with its zygote included.

    Without pages of files and of the arena. Takes microseconds, unlike `smaps`.
    """
    _, resident, shared, *_ = (int(field) for field in Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
