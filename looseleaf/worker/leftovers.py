"""What a cell left running: the worker, and with it the GPU, cannot go quietly while it lives."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final

from looseleaf.worker.inbox import OWN_TASKS
from looseleaf.worker.plain import plain
from looseleaf.worker.quiet import is_quiet_thread, quiet_processes

LEFTOVERS_MAX: Final = 32
# Threads of ours; those of asyncio run what tasks gave them, and the tasks are counted.
OWN_THREADS: Final = ("looseleaf", "asyncio_")
_THREAD_NAME: Final[Any] = vars(threading.Thread)["name"].__get__


def leftovers(loop: asyncio.AbstractEventLoop) -> list[dict[str, str]]:
    """Threads, child processes and unfinished asyncio tasks of the person, as {kind, name}; at most 32.

    Without those that only serve a library (worker/quiet.py). Never raises, whatever the person's classes do: the
    cell's save comes after it.
    """
    found = [("thread", name) for thread in threading.enumerate() if (name := _left_thread(thread))]
    children = _children()
    quiet = quiet_processes(set(children))
    found += [("process", name) for pid, name in children.items() if pid not in quiet]
    found += [("task", _task_name(task)) for task in asyncio.all_tasks(loop) if _is_the_persons(task)]
    return [{"kind": kind, "name": plain(name)} for kind, name in found[:LEFTOVERS_MAX]]


def _left_thread(thread: threading.Thread) -> str:
    """The name of a thread that the person left running; nothing for others."""
    # By the base class's own: a thread's class may be the person's, its properties their code.
    name = str(_THREAD_NAME(thread))
    if thread is threading.main_thread() or name.startswith(OWN_THREADS) or is_quiet_thread(thread):
        return ""
    return name or "unnamed"


def _children() -> dict[int, str]:
    """Child processes that run, by pid."""
    found: dict[int, str] = {}
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            pids = path.read_text().split()
        except OSError:
            continue  # the thread has ended
        found.update({int(pid): name for pid in pids if (name := _process_name(pid))})
    return found


def _process_name(pid: str) -> str:
    """The process's command name, or nothing for one that has ended and only waits to be reaped."""
    try:
        # The kernel cuts names at 15 bytes, also in the middle of a character.
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return "" if rest.split()[:1] == ["Z"] else f"{name} ({pid})"


def _is_the_persons(task: asyncio.Task[Any]) -> bool:
    return not task.done() and not task.get_name().startswith(OWN_TASKS)


def _task_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return str(getattr(coroutine, "__qualname__", None) or task.get_name())


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
