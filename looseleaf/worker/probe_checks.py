"""What must not be in a process that others are forked from, found without changing it (import-cache study §2, §3).

The verdicts' words are those of `Verdict` in the daemon's core/zygote_facts.py.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.spoiled_cuda import SPOILED_SIGNS

# Modules whose threads or state do not survive a fork.
FORBIDDEN_MODULES: Final = ("grpc", "tensorflow", "ray")
CUDA_DRIVER: Final = "libcuda.so.1"
_CUDA_ERROR_NOT_INITIALIZED: Final = 3
# The driver's users say one more; who asks has looked at the driver too.
_SPOILED_SIGNS: Final = (*SPOILED_SIGNS, "CUDA_ERROR_NOT_INITIALIZED")
# NVML opens the other device files too; this one only CUDA.
_CUDA_DEVICE: Final = "/dev/nvidia-uvm"
_SHARED_KINDS: Final = ("socket:", "pipe:", "anon_inode:", "/dev/nvidia", "/dev/dri/")

log = logging.getLogger("looseleaf.worker")

Finding = tuple[str, str]


@dataclass(frozen=True)
class Surroundings:
    """What an import may change of its process besides its modules."""

    fds: Mapping[int, str]
    children: frozenset[int]
    handlers: Mapping[int, Any]
    wakeup_fd: int
    cwd: str
    umask: int
    relative_paths: frozenset[str]

    @classmethod
    def here(cls) -> Surroundings:
        """As they are now; call on the main thread."""
        wakeup_fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup_fd)
        return cls(
            _open_fds(), frozenset(children()), {number: signal.getsignal(number) for number in signal.valid_signals()},
            wakeup_fd, _cwd(), _umask(), frozenset(entry for entry in sys.path if not os.path.isabs(entry)),
        )  # fmt: skip


def failure(error: BaseException) -> Finding:
    """Of an import that raised. A full disk, or a server that is away, is nothing of the package's and may pass."""
    verdict = "passing" if isinstance(error, OSError | MemoryError) else "error"
    return verdict, f"{type(error).__name__}: {error}"


def unclean(own_fds: Collection[int] = ()) -> Finding | None:
    """(verdict, detail) of what makes this process unfit to be forked; None if nothing was found.

    `own_fds`: descriptors above 2 that it is meant to have. Threads of native libraries are not looked at: whether one
    comes back after a fork only a fork shows, which is a probe's work.
    """
    ours = {0, 1, 2, *own_fds}
    opened = {fd: target for fd, target in _open_fds().items() if fd not in ours}
    return _loaded() or _driver(opened) or _left_children(set(children())) or _opened(opened) or _threads()


def unclean_since(before: Surroundings) -> Finding | None:
    """As `unclean`, of what was not there `before`; also what an import changed that is not inherited as it is."""
    now = Surroundings.here()
    opened = {fd: target for fd, target in now.fds.items() if before.fds.get(fd) != target}
    found = _loaded() or _driver(opened) or _left_children(now.children - before.children)
    return found or _opened(opened) or _threads() or _effects(before, now)


def driver_initialised() -> bool:
    """Whether cuInit ran in this process, asked of a driver that is loaded already, without side effects.

    `torch.cuda.is_initialized()` says no after a mere `cudaGetDeviceCount`, which spoils every fork as well.
    """
    driver = _loaded_driver()
    count_devices = getattr(driver, "cuDeviceGetCount", None)
    if count_devices is None:
        return False
    count = ctypes.c_int()
    return int(count_devices(ctypes.byref(count))) != _CUDA_ERROR_NOT_INITIALIZED


def cuda_is_spoiled(error: str) -> bool:
    """Whether this process, after a cell whose error has this text, cannot use CUDA because of where it was forked.

    A process that the cell forked itself, such as a loader of data, raises the same texts; this one can use CUDA then.
    """
    if any(sign in error for sign in _SPOILED_SIGNS) and _loaded_driver() is not None and not driver_initialised():
        return True
    try:
        return in_bad_fork()
    except Exception as fault:
        # A person's own `torch`, whatever it is, must not cost the cell's save.
        log.warning("torch_not_asked error=%s", type(fault).__name__)
        return False


def _loaded_driver() -> ctypes.CDLL | None:
    """The CUDA driver, if something here has loaded it."""
    try:
        return ctypes.CDLL(CUDA_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def in_bad_fork() -> bool:
    """Whether torch refuses CUDA here because of what the process did that this one was forked from."""
    core = getattr(sys.modules.get("torch"), "_C", None)
    # Not by getattr: a virtual GPU answers for what this build of torch has not.
    check = getattr(core, "__dict__", {}).get("_cuda_isInBadFork")
    return bool(check()) if check is not None else False


def thread_count() -> int:
    """Threads of this process; `threading` does not know those of native libraries."""
    return len(os.listdir("/proc/self/task"))


def children() -> list[int]:
    """Pids of this process's children, ended ones that nobody waited for included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # the thread ended, or the kernel does not list children
    return found


def _loaded() -> Finding | None:
    found = [name for name in FORBIDDEN_MODULES if name in sys.modules]
    if found:
        return "grpc-like", f"loads {', '.join(found)}, which does not survive a fork"
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
    return ("grpc-like", "starts a JAX backend, which does not survive a fork") if backends else None


def _driver(opened: Mapping[int, str]) -> Finding | None:
    if driver_initialised():
        return "cuda", "initialises the CUDA driver, after which no forked process can use it"
    return ("cuda", "opens a CUDA context") if _CUDA_DEVICE in opened.values() else None


def _left_children(new: Collection[int]) -> Finding | None:
    return ("children", f"leaves {len(new)} processes running") if new else None


def _opened(opened: Mapping[int, str]) -> Finding | None:
    # Ordinary files are at most read on: nobody is at their other end.
    found = sorted({target for target in opened.values() if target.startswith(_SHARED_KINDS)})
    return ("fds", f"leaves open: {', '.join(found)}") if found else None


def _threads() -> Finding | None:
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return ("threads", f"starts threads: {', '.join(others)}") if others else None


def _effects(before: Surroundings, now: Surroundings) -> Finding | None:
    numbers = [number for number, handler in now.handlers.items() if handler != before.handlers.get(number)]
    changed = [
        *(f"the handler of signal {number} ({signal.strsignal(number)})" for number in sorted(numbers)),
        *(["the wakeup descriptor of signals"] if now.wakeup_fd != before.wakeup_fd else []),
        *(["the working directory"] if now.cwd != before.cwd else []),
        *(["the umask"] if now.umask != before.umask else []),
        *(["relative entries of sys.path"] if now.relative_paths - before.relative_paths else []),
    ]
    return ("effects", f"changes {', '.join(changed)}") if changed else None


def _open_fds() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own, closed by now
    return found


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted


def _umask() -> int:
    # os.umask tells only while it sets.
    found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 8) if found else 0
