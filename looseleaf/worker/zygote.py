"""The root zygote: a warm, single-threaded process that imports the head set once and forks a worker for each request.

Exec'ed by the daemon as `python -P -m looseleaf.worker.zygote --ctl-fd N --imports a,b`; serves until the other end of
the control channel closes. It runs no user code, holds no data, and has neither gRPC nor a thread, for neither survives
a fork.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from looseleaf.checkpoint import import_filters
from looseleaf.checkpoint.module_code import BASELINE
from looseleaf.environment import Environment
from looseleaf.errors import InvalidArgument, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.protocol import fields
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message, close_fds
from looseleaf.worker.isolation import isolate_zygote, set_title
from looseleaf.worker.shell import WorkerShell, build_shell
from looseleaf.worker.streams import OutStream
from looseleaf.worker.thread_counts import loaded_thread_libraries, missing_thread_variables

EXIT_UNCLEAN: Final = 3
# Modules whose threads or state do not survive a fork.
FORBIDDEN_MODULES: Final = ("grpc", "tensorflow", "ray")
# By its presence libraries tell a notebook from a terminal when they are imported; an environment may lack it.
NOTEBOOK_SIGNS: Final = ("ipykernel.zmqshell",)
# What a package, or every cell, loads at its first use: here once instead of in each worker.
LOADED_LATER: Final = {
    "": ("looseleaf.checkpoint.tracker", "pexpect", "IPython.core.pylabtools"),
    "matplotlib.pyplot": ("matplotlib.backends.backend_agg",),
    "numpy": ("numpy.random", "looseleaf.checkpoint.numpy_memory"),
    "torch": ("looseleaf.checkpoint.torch_memory",),
}
ERROR_CHARS_MAX: Final = 300
_FORK_FDS: Final = 4
_WORKER_PID: Final = struct.Struct("<ii")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the zygote. Returns 0 when the daemon has gone, 3 if it may not serve (the reason was sent as `ERR`)."""
    parser = argparse.ArgumentParser(prog="looseleaf.worker.zygote")
    parser.add_argument("--ctl-fd", type=int, required=True)
    parser.add_argument("--imports", default="", help="comma-separated modules to import before serving")
    options = parser.parse_args(argv)
    os.set_inheritable(options.ctl_fd, False)
    control = ControlSocket(socket.socket(fileno=options.ctl_fd))
    isolate_zygote()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    streams = (OutStream("stdout", 1), OutStream("stderr", 2))
    sys.stdout, sys.stderr = streams
    sys.argv = [""]
    gc.disable()
    # Before the first import: what is installed while these run is not what they found.
    environment = Environment.here()
    environment_id = environment.identify()
    try:
        check_environment()
        # First: libraries look for it when they are imported, to tell a notebook from a terminal.
        shell = build_shell()
        with shell.builtin_trap:
            import_head(NOTEBOOK_SIGNS)
            imported, failed = import_head([name for name in options.imports.split(",") if name])
        zygote = Zygote(control, streams, shell, [item["name"] for item in imported], environment_id)
        for trigger, names in LOADED_LATER.items():
            if not trigger or trigger in sys.modules:
                failed += import_head(names)[1]
    except PreconditionFailed as error:
        control.send({"t": "ERR", "id": 0, "errno": 0, "text": str(error)})
        sys.stderr.write(f"{error}\n")
        return EXIT_UNCLEAN
    BASELINE.begin()
    gc.collect()
    gc.freeze()
    control.send({
        "t": "READY", "v": PROTOCOL_VERSION, "imports": imported, "failed": failed, "threads": thread_count(),
        "pid": os.getpid(), "environment_id": environment_id, "interpreter": environment.interpreter,
        "site_dirs": list(environment.site_dirs),
    })
    zygote.serve()
    return 0


def check_environment() -> None:
    """Raises PreconditionFailed `THREAD_VARIABLES_MISSING` unless the compute libraries will start without threads."""
    missing = missing_thread_variables()
    if missing:
        text = f"a zygote must be started with {', '.join(missing)} set to 1"
        raise PreconditionFailed("THREAD_VARIABLES_MISSING", text)
    # The choice that ipykernel makes; matplotlib reads it when it is imported.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    # NVML answers "is there a GPU" without cuInit, after which no child of this process could use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # Arrow's allocator, which pandas loads, would start a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def import_head(names: Iterable[str]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Imports each module. ({name, seconds} of those that worked, {name, error} of those that did not.)

    Raises PreconditionFailed as `check_clean`, naming the module: an import cannot be undone.
    """
    imported: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for name in names:
        began_s = time.monotonic()
        try:
            with import_filters.noted():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            failed.append({"name": name, "error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]})
            continue
        imported.append({"name": name, "seconds": round(time.monotonic() - began_s, 4)})
        check_clean(name)
    return imported, failed


def check_clean(imported: str) -> None:
    """Raises PreconditionFailed `FORBIDDEN_MODULE` or `THREADS_RUNNING` if this process must not be forked any more.

    Threads of native libraries are not looked at: those of the head set end or come back by themselves at a fork.
    """
    found = [name for name in FORBIDDEN_MODULES if name in sys.modules]
    if found:
        text = f"importing {imported} loads {', '.join(found)}, which does not survive a fork"
        raise PreconditionFailed("FORBIDDEN_MODULE", text, name=imported)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        text = f"importing {imported} started threads: {', '.join(others)}"
        raise PreconditionFailed("THREADS_RUNNING", text, name=imported)


def thread_count() -> int:
    """Threads of this process; `threading` does not know those of native libraries."""
    return len(os.listdir("/proc/self/task"))


class Zygote:
    """Answers the daemon's control messages one at a time, in order."""

    def __init__(
        self, control: ControlSocket, streams: tuple[OutStream, OutStream], shell: WorkerShell, imports: list[str],
        environment_id: str,
    ) -> None:
        from looseleaf.worker.child import Inheritance, install_devices

        self._control = control
        self._inherited = Inheritance(shell, streams, imports, loaded_thread_libraries(), environment_id)
        install_devices("zygote")
        set_title("ll-zygote")

    def serve(self) -> None:
        """Returns when the daemon has closed its end."""
        while True:
            try:
                message, received = self._control.recv()
            except Unavailable:
                return
            except InvalidArgument as error:
                self._control.send({"t": "ERR", "id": 0, "errno": errno.EBADMSG, "text": str(error)})
                continue
            try:
                self._control.send(self._answer(message, received))
            except Unavailable:
                return
            finally:
                close_fds(received)

    def _answer(self, message: Message, received: list[int]) -> Message:
        if message["t"] == "PING":
            return {"t": "PONG", "imports": self._inherited.imports, "threads": thread_count(), "pid": os.getpid()}
        request_id = message.get("id", 0)
        try:
            if message["t"] != "FORK":
                raise InvalidArgument("UNKNOWN_MESSAGE", f"a zygote knows no {message['t']!r}")
            pid = self._fork(message, received)
        except OSError as error:
            return {"t": "ERR", "id": request_id, "errno": error.errno or errno.EIO, "text": str(error)}
        except LooseLeafError as error:
            return {"t": "ERR", "id": request_id, "errno": errno.EINVAL, "text": str(error)}
        return {"t": "FORKED", "id": request_id, "pid": pid}

    def _fork(self, message: Message, received: list[int]) -> int:
        from looseleaf.worker.child import Birth, become_worker

        if fields.integer(message, "v") != PROTOCOL_VERSION:
            raise InvalidArgument("PROTOCOL_VERSION", f"this zygote speaks version {PROTOCOL_VERSION}")
        if len(received) != _FORK_FDS:
            raise InvalidArgument("FDS_MISSING", f"FORK needs {_FORK_FDS} fds, {len(received)} came")
        env = fields.mapping(message, "env", {})
        if not all(isinstance(value, str) for value in env.values()):
            raise InvalidArgument("FIELD_MALFORMED", "FORK's env must hold texts")
        channel, stdin, stdout, stderr = received
        birth = Birth(fields.text(message, "title"), env, channel, (stdin, stdout, stderr))

        def enter() -> NoReturn:
            self._control.forget()
            become_worker(birth, self._inherited)

        return fork_grandchild(enter)


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
            worker = os.fork()
            if worker == 0:
                enter()
            os.write(write_fd, _WORKER_PID.pack(worker, 0))
        except OSError as error:
            os.write(write_fd, _WORKER_PID.pack(0, error.errno or errno.EIO))
        finally:
            os._exit(0)
    os.close(write_fd)
    try:
        data = os.read(read_fd, _WORKER_PID.size)
    finally:
        os.close(read_fd)
        os.waitpid(middle, 0)
    if len(data) != _WORKER_PID.size:
        raise OSError(errno.EIO, "the process between a zygote and its worker ended early")
    pid, error_number = _WORKER_PID.unpack(data)
    if pid == 0:
        raise OSError(error_number, os.strerror(error_number))
    return int(pid)


def _flush_everything() -> None:
    # What lies in a buffer at a fork is written twice. Libraries may keep the streams that were there before ours.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


if __name__ == "__main__":
    # The shell makes its own module `__main__`; the functions above must not lose their globals with this one.
    sys.exit(importlib.import_module("looseleaf.worker.zygote").main())
