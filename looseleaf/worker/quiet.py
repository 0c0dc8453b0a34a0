"""What serves a library and holds nobody's GPU: idle pools, loaders' workers, helpers that start by themselves.

Such threads and processes outlive the cells that made them in every notebook; to keep a GPU for them would keep it for
good. Everything else that a cell leaves running is the person's.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import gc
import multiprocessing.pool
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

# Managers of process pools: the standard library's and its descendants, with the same attributes.
_POOL_MANAGER: Final = "_ExecutorManagerThread"
_LOADER: Final = ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
# Where code lies that a person wrote: nowhere, or beside the notebook.
_LIBRARY_PARTS: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_quiet_thread(thread: threading.Thread) -> bool:
    """Whether `thread` is a pool's that has nothing to do, or a daemon thread of a library. Never raises."""
    try:
        if type(thread).__name__ == _POOL_MANAGER:
            return not getattr(thread, "pending_work_items", None)
        if _waits_for_work(thread):
            return True
        return thread.daemon and not _is_the_persons(thread)
    except Exception:
        # Its class, or its target's, has ideas of its own of attributes: no library's helper does.
        return False


def _waits_for_work(thread: threading.Thread) -> bool:
    """A thread of a ThreadPoolExecutor whose innermost Python frame takes from the queue."""
    frame = sys._current_frames().get(thread.ident or 0)
    worker: Any = concurrent.futures.thread._worker
    return frame is not None and frame.f_code is worker.__code__


def _is_the_persons(thread: threading.Thread) -> bool:
    if _module_is_the_persons(type(thread).__module__):
        return True
    # A Timer keeps its function elsewhere.
    target = getattr(thread, "function", None) or getattr(thread, "_target", None)
    return target is not None and _module_is_the_persons(_module_of(target))


def _module_of(target: Callable[..., Any]) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__module__", None) or type(target).__module__)


def _module_is_the_persons(name: str) -> bool:
    if name == "__main__":
        return True
    path = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(path, str):
        return False
    library = os.path.dirname(os.__file__)
    return not path.startswith(library) and not any(part in path for part in _LIBRARY_PARTS)


def quiet_processes(children: set[int]) -> set[int]:
    """Those of the child processes `children` that pools and loaders keep, or that libraries started for themselves."""
    if not children:
        return set()
    quiet = set(_helper_pids())
    for thread in threading.enumerate():
        if type(thread).__name__ == _POOL_MANAGER and is_quiet_thread(thread):
            quiet.update(getattr(thread, "processes", None) or ())
    if children - quiet:
        quiet.update(_pids_of_idle_owners())
    return quiet & children


def _helper_pids() -> Iterator[int]:
    for module, holder, attribute in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
        ("joblib.externals.loky.backend.resource_tracker", "_resource_tracker", "_pid"),
    ):
        pid = getattr(getattr(sys.modules.get(module), holder, None), attribute, None)
        if isinstance(pid, int):
            yield pid


def _pids_of_idle_owners() -> Iterator[int]:
    # Neither keeps a list of its instances. What the zygote had is frozen and not looked through.
    for value in gc.get_objects():
        kind = type(value)
        if (kind.__module__, kind.__name__) == _LOADER:
            yield from _pids_of(getattr(value, "_workers", ()))
        elif kind is multiprocessing.pool.Pool and not getattr(value, "_cache", None):
            yield from _pids_of(getattr(value, "_pool", ()))


def _pids_of(processes: Iterable[Any]) -> Iterator[int]:
    # An owner that failed while it was made lives on in its traceback, and a closed process has no pid to tell.
    for process in processes:
        try:
            pid = process.pid
        except ValueError:
            continue
        if pid:
            yield pid
