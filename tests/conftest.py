"""What every test can rely on: no test of real GPUs runs without one, and no test leaves anything behind.

A test that leaves a process, a thread, an open descriptor or named shared memory behind fails at its end.
`@pytest.mark.leaks_ok(reason)` excuses one that cannot help it.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import structlog

# IPython warns of a virtual environment that is active and not the one that runs the tests.
os.environ.pop("VIRTUAL_ENV", None)
# No property depends on how fast the machine is.
hypothesis.settings.register_profile(
    "any-machine", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")
# As a service writes them: with all locals of every frame, which is the default, one takes seconds.
structlog.configure(processors=[
    *structlog.get_config()["processors"][:-1],
    structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
])
# What ends by itself, such as a closed connection's descriptor, gets this long; a leak costs the test as much.
LEAK_GRACE_S = 5.0
# Threads that libraries start once and keep, or end after this check, by the start or the end of their names.
LIBRARY_THREADS = {
    "asyncio_": "an event loop's executor; ends with the loop, after this check",
    "(_poll_wrapper)": "gRPC's aio poller",
}
# Descriptors that libraries open once and keep.
LIBRARY_FDS = {
    "anon_inode:[eventpoll]": "gRPC's event engine",
    "anon_inode:[eventfd]": "gRPC's event engine",
    "/dev/urandom": "read by several",
}
PR_SET_CHILD_SUBREAPER = 36
RAN_WITHOUT_FAILURE = pytest.StashKey[bool]()


def _gpu_count() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


# Shells start what runs in their background, as the gate does its steps, with SIGINT ignored; processes pass that on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and _gpu_count() == 0:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes whether the test passed: what a failed one leaves behind is part of its failure."""
    item.stash[RAN_WITHOUT_FAILURE] = False
    yield
    item.stash[RAN_WITHOUT_FAILURE] = True


@pytest.fixture(scope="module", autouse=True)
def no_subreaper() -> None:
    """Orphans of one file's processes are not adopted because an earlier file's tests wanted theirs."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that passed and left something behind; what fixtures of a wider scope made is not its own."""
    marker = request.node.get_closest_marker("leaks_ok")
    if "grpc" in sys.modules:
        _keep_grpc_poller()
    _keep_jupyter_loop()
    before = Resources.now()
    yield
    if marker is None and request.node.stash.get(RAN_WITHOUT_FAILURE, False):
        left = before.left_since()
        assert not left, f"the test left behind: {'; '.join(left)}"


@functools.cache
def _keep_grpc_poller() -> None:
    """gRPC ends its aio poller with its last object and begins another with the next; one that stays is no leak."""
    from grpc.experimental import aio  # type: ignore[attr-defined]

    async def begin() -> None:
        aio.init_grpc_aio()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()


@functools.cache
def _keep_jupyter_loop() -> None:
    """Jupyter's blocking clients share one event loop of the main thread, made at the first call and kept.

    Made here, also where Jupyter is not loaded yet: a test may be the first that calls one.
    """
    from jupyter_core.utils import ensure_event_loop

    ensure_event_loop()


@dataclass(frozen=True)
class Resources:
    """What this process holds: children by pid, threads, descriptors with their targets, named shared memory."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    fds: frozenset[tuple[int, str]]
    memory: frozenset[str]

    @classmethod
    def now(cls) -> Resources:
        return cls(_children(), frozenset(threading.enumerate()), _open_fds(), _shared_memory())

    def left_since(self) -> list[str]:
        """What was not there before and does not go away, in words."""
        limit_s = time.monotonic() + LEAK_GRACE_S
        pause_s = 0.001
        while (left := self._new()) and time.monotonic() < limit_s:
            time.sleep(pause_s)
            pause_s = min(0.2, pause_s * 2)
            # Objects in reference cycles close what they hold only now.
            gc.collect()
        return left

    def _new(self) -> list[str]:
        now = Resources.now()
        return [
            *(f"process {pid} ({_command(pid)})" for pid in sorted(now.processes - self.processes)),
            *(f"thread {thread.name!r}" for thread in now.threads - self.threads if not _is_library(thread)),
            *(f"fd {fd} -> {target}" for fd, target in sorted(now.fds - self.fds) if target not in LIBRARY_FDS),
            *(f"shared memory {name}" for name in sorted(now.memory - self.memory)),
        ]


def _children() -> frozenset[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except FileNotFoundError:
            continue  # the thread ended meanwhile
    return frozenset(found)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100] or "ended"
    except OSError:
        return "gone"


def _is_library(thread: threading.Thread) -> bool:
    return any(thread.name.startswith(part) or thread.name.endswith(part) for part in LIBRARY_THREADS)


def _open_fds() -> frozenset[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the folder's own descriptor, closed by now
    return frozenset(found)


def _shared_memory() -> frozenset[str]:
    """Of the product and of torch in this process; other programs of the machine use the folder too."""
    ours = ("looseleaf-", f"torch_{os.getpid()}_")
    return frozenset(name for name in os.listdir("/dev/shm") if name.startswith(ours))
