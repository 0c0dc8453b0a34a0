"""From the fork to the first request: what a worker must undo of its zygote, and in which order."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from looseleaf import devices
from looseleaf.devices import Kind, Role
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.confinement import CONFINEMENT_VARIABLE, Confinement
from looseleaf.worker.interrupts import ignore_interrupts
from looseleaf.worker.isolation import confine_worker, reset_signals, set_title
from looseleaf.worker.log_format import LogFormat
from looseleaf.worker.runtime import WorkerRuntime
from looseleaf.worker.shell import WorkerShell
from looseleaf.worker.streams import OutStream
from looseleaf.worker.thread_counts import THREAD_VARIABLES, ComputeThreads, default_thread_count
from looseleaf.worker.zygote_forks import stand_alone

EXIT_FAULT: Final = 70
_FREE: Final = Confinement().text()
# What `install_devices` did last.
_installed: tuple[Role, str, int, int] | None = None


@dataclass(frozen=True)
class Inheritance:
    """What a zygote hands to its workers."""

    shell: WorkerShell
    streams: tuple[OutStream, OutStream]
    imports: list[str]
    thread_libraries: list[str]
    environment_id: str = ""


@dataclass(frozen=True)
class Birth:
    """One worker to be: its fds are in this process's table, [stdin, stdout, stderr] still above 2."""

    title: str
    env: Mapping[str, str]
    channel_fd: int
    stdio_fds: tuple[int, int, int]


def become_worker(birth: Birth, inherited: Inheritance) -> NoReturn:
    """Turns the forked process into a worker and serves until the daemon is gone. Never returns, never raises."""
    log_fd = 2
    runtime: WorkerRuntime | None = None
    try:
        _leave_the_zygote(birth)
        # Fd 2 will be the person's output; what is said here belongs to the daemon.
        log_fd = os.dup(2)
        faulthandler.enable(file=log_fd)
        _set_environment(birth.env)
        confine_worker(Confinement.parse(os.environ.pop(CONFINEMENT_VARIABLE, _FREE)), os.environ)
        set_title(birth.title)
        reseed()
        threads = ComputeThreads(inherited.thread_libraries)
        threads.begin(_number("LOOSELEAF_THREADS") or default_thread_count())
        install_devices("worker")
        channel = Channel(socket.socket(fileno=birth.channel_fd))
        runtime = WorkerRuntime(
            inherited.shell, channel, inherited.streams, inherited.imports, threads, log_fd, inherited.environment_id
        )
        runtime.run()
    except BaseException:
        # Once it runs, a traceback may show cell text.
        text = traceback.format_exc() if runtime is None else LogFormat().formatException(sys.exc_info())
        os.write(log_fd, text.encode("utf-8", "replace"))
    finally:
        os._exit(EXIT_FAULT)


def _leave_the_zygote(birth: Birth) -> None:
    stand_alone(birth)
    # One that comes before the rest is ignored, not the end.
    ignore_interrupts()
    reset_signals(but={signal.SIGINT})
    atexit._clear()
    # Never gc.unfreeze(): one collection over the zygote's objects would copy 40 MB of its pages.
    gc.enable()


def _set_environment(env: Mapping[str, str]) -> None:
    for name in THREAD_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(env)
    # As ipykernel does: modules beside the notebook are found.
    if "" not in sys.path:
        sys.path.insert(0, "")


def reseed() -> None:
    """Fresh random states for what CPython does not reseed at a fork: siblings would all draw the same numbers."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def install_devices(role: Role) -> None:
    """`devices.install` for the devices that the daemon named in the environment; does nothing if it did just that."""
    global _installed
    memory_bytes = _number("LOOSELEAF_GPU_MEMORY_BYTES") or devices.VIRTUAL_MEMORY_BYTES
    wanted = role, os.environ.get("LOOSELEAF_DEVICE", "none"), _number("LOOSELEAF_GPUS"), memory_bytes
    if wanted == _installed:
        return
    _installed = None
    # An unknown kind raises InvalidArgument: the daemon is then set up wrong.
    devices.install(role, cast(Kind, wanted[1]), wanted[2], memory_bytes=memory_bytes)
    _installed = wanted


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0
