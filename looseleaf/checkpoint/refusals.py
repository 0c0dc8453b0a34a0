"""What cannot move to another process, by type: refused with a reason and a sentence, never saved half (design §3)."""

from __future__ import annotations

import contextvars
import io
import mmap
import multiprocessing.process
import select
import socket
import subprocess
import sys
import threading
import types
import weakref
from typing import Any, Final, NamedTuple

from looseleaf.checkpoint.class_answers import kept_by_class
from looseleaf.checkpoint.widgets import moves


class Refusal(NamedTuple):
    """`reason` is a stable UPPER_SNAKE word, `detail` the sentence for the person."""

    reason: str
    detail: str


_BY_TYPE: Final[tuple[tuple[type | tuple[type, ...], Refusal], ...]] = (
    (types.GeneratorType, Refusal("GENERATOR", "a generator is a running function and cannot move; make a list of it")),
    (
        (types.CoroutineType, types.AsyncGeneratorType),
        Refusal("COROUTINE", "a coroutine is a running function and cannot move; await it in the cell that makes it"),
    ),
    ((types.FrameType, types.TracebackType), Refusal("FRAME", "a stack frame belongs to a running program")),
    (threading.Thread, Refusal("THREAD", "a thread runs in its own process only")),
    (threading.local, Refusal("THREAD_LOCAL", "values of one thread have no meaning in another process")),
    (
        (multiprocessing.process.BaseProcess, subprocess.Popen),
        Refusal("PROCESS", "a handle of another process is valid where it was made only"),
    ),
    (socket.socket, Refusal("SOCKET", "an open connection cannot move; connect again")),
    (mmap.mmap, Refusal("MAPPED_FILE", "a mapped file cannot move; map it again")),
    ((select.epoll, select.poll().__class__), Refusal("SELECTOR", "a selector watches files of its own process")),
    (weakref.finalize, Refusal("FINALIZER", "its function runs in the process in which its object dies")),
    (contextvars.Token, Refusal("CONTEXT_TOKEN", "a context token is valid in its own context only")),
    (
        (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair, io.FileIO),
        Refusal("OPEN_FILE", "an open file cannot move and was left alone; close it and open it again where needed"),
    ),
)

_EXECUTOR: Final = "the threads or processes of a pool cannot move; make a new pool"

# Types that must not be imported to be recognised: (module prefix, class name or "" for all) -> refusal.
_BY_NAME: Final[tuple[tuple[str, str, Refusal], ...]] = (
    ("sqlite3", "", Refusal("DATABASE", "a database connection cannot move; connect again")),
    ("torch.cuda.streams", "", Refusal("CUDA_HANDLE", "CUDA streams and events live in one process; make new ones")),
    ("torch.cuda.graphs", "", Refusal("CUDA_HANDLE", "a CUDA graph lives in one process; capture it again")),
    ("torch.utils.data.dataloader", "DataLoaderIter", Refusal(
        "LIVE_ITERATOR", "a half-consumed DataLoader iterator cannot move; iterate the loader again"
    )),
    ("torch.export", "ExportedProgram", Refusal(
        "TRACED_PROGRAM", "an exported program cannot move: keep it in a file by torch.export.save, or export it again"
    )),
    ("concurrent.futures", "Executor", Refusal("EXECUTOR", _EXECUTOR)),
    ("multiprocessing.pool", "Pool", Refusal("EXECUTOR", _EXECUTOR)),
    ("concurrent.futures", "Future", Refusal("FUTURE", "its result comes where it is worked on: wait for it")),
    ("_asyncio", "", Refusal("FUTURE", "a task or future belongs to a running event loop: await it")),
    ("asyncio", "EventLoop", Refusal("EVENT_LOOP", "an event loop runs in one process only")),
    ("asyncio", "Stream", Refusal("SOCKET", "an open connection cannot move; connect again")),
    ("ipywidgets", "", Refusal("WIDGET", "it is a part of the widget library, bound to this process")),
    ("ipykernel", "", Refusal("KERNEL_OBJECT", "it is a part of the running kernel")),
    ("zmq", "", Refusal("SOCKET", "an open connection cannot move; connect again")),
    ("comm", "", Refusal("KERNEL_OBJECT", "it is bound to this kernel's connection to the page")),
    ("grpc", "", Refusal("SOCKET", "an open connection cannot move; connect again")),
    ("looseleaf", "", Refusal("LOOSELEAF_OBJECT", "it is a part of LooseLeaf itself")),
)  # fmt: skip
# Instances of these are by design plain state although their package is listed above.
_PLAIN_OF_OURS: Final = (
    "looseleaf.errors", "looseleaf.checkpoint.memory", "looseleaf.checkpoint.stub",
    "looseleaf.checkpoint.torch_objects",
)  # fmt: skip

_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())
LOCK_TYPES: Final = (_LOCK, _RLOCK)


@kept_by_class
def refusal_of_type(kind: type) -> Refusal | None:
    """Why no instance of `kind` can be saved; None: it depends on the instance, or nothing speaks against it."""
    for types_, refusal in _BY_TYPE:
        if issubclass(kind, types_):
            return refusal
    for base in kind.__mro__:
        module = base.__module__ if type(base.__module__) is str else ""
        for prefix, name, refusal in _BY_NAME:
            if (module == prefix or module.startswith(prefix + ".")) and name in base.__name__:
                if not module.startswith(_PLAIN_OF_OURS) and not moves(kind):
                    return refusal
    return None


def refusal_of_instance(value: Any) -> Refusal | None:
    """Why this very object cannot be saved: a held lock, an open file; standard streams are found again by name."""
    if type(value) in LOCK_TYPES:
        return _HELD_LOCK if _is_held(value) else None
    kind: Any = type(value)
    found: Refusal | None = refusal_of_type(kind)
    if found is not None and any(value is stream for stream in standard_streams().values()):
        return None
    return found


_HELD_LOCK: Final = Refusal("HELD_LOCK", "a lock that is held cannot move: the thread that would release it stays here")


def _is_held(lock: Any) -> bool:
    if type(lock) is _LOCK:
        return bool(lock.locked())
    if lock._is_owned() or not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def standard_streams() -> dict[str, Any]:
    """sys.stdin, stdout and stderr by attribute name; every process has its own."""
    return {name: getattr(sys, name, None) for name in ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")}
