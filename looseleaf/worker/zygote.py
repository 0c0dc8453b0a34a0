"""The root zygote: a warm, single-threaded process that imports the head set once and forks workers on request.

Exec'ed by the daemon as `python -P -m looseleaf.worker.zygote --ctl-fd N --imports a,b`; serves until the other end of
the control channel closes. It runs no user code, holds no data, and has neither gRPC nor a thread, for neither survives
a fork. On request it also forks zygotes that import more (zygote_node) and probes that only try to (probe).
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from looseleaf.environment import Environment
from looseleaf.errors import InvalidArgument, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.protocol import fields
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message, close_fds
from looseleaf.worker.fork_readiness import become_ready_to_fork, forget_found_files
from looseleaf.worker.huge_pages import use_huge_pages
from looseleaf.worker.isolation import IMPORT_LIMIT_S, end_after, isolate_zygote, set_title, undo_imports
from looseleaf.worker.probe import become_probe
from looseleaf.worker.probe_checks import thread_count
from looseleaf.worker.shell import WorkerShell, build_shell
from looseleaf.worker.streams import OutStream
from looseleaf.worker.thread_counts import loaded_thread_libraries, missing_thread_variables
from looseleaf.worker.zygote_forks import fork_grandchild
from looseleaf.worker.zygote_imports import (
    NOTEBOOK_SIGNS,
    check_rehearsed,
    import_head,
    known_modules,
    load_later,
    memory_bytes,
    refusal,
)
from looseleaf.worker.zygote_node import become_node

if TYPE_CHECKING:
    from looseleaf.worker.child import Birth, Inheritance

EXIT_UNCLEAN: Final = 3
_FORK_FDS: Final = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the zygote. Returns 0 when the daemon has gone, 3 if it may not serve (the reason was sent as `ERR`)."""
    parser = argparse.ArgumentParser(prog="looseleaf.worker.zygote")
    parser.add_argument("--ctl-fd", type=int, required=True)
    parser.add_argument("--imports", default="", help="comma-separated modules to import before serving")
    parser.add_argument("--import-limit-s", type=float, default=IMPORT_LIMIT_S, help="end if they take longer")
    options = parser.parse_args(argv)
    os.set_inheritable(options.ctl_fd, False)
    control = ControlSocket(socket.socket(fileno=options.ctl_fd))
    isolate_zygote()
    end_after(options.import_limit_s)
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
            names = [name for name in options.imports.split(",") if name]
            imported, failed = import_head(names, progress=lambda name: control.send({"t": "IMPORTING", "name": name}))
        inherited = inheritance(shell, streams, [item["name"] for item in imported], environment_id)
        failed += load_later()
        become_ready_to_fork()
        check_rehearsed(inherited.imports)
    except PreconditionFailed as error:
        control.send(refusal(error))
        sys.stderr.write(f"{error}\n")
        return EXIT_UNCLEAN
    end_after(0)
    undo_imports()
    huge_pages = use_huge_pages()
    control.send({
        "t": "READY", "v": PROTOCOL_VERSION, "imports": imported, "failed": failed, "threads": thread_count(),
        "pid": os.getpid(), "environment_id": environment_id, "interpreter": environment.interpreter,
        "site_dirs": list(environment.site_dirs), "modules": known_modules(),
        "private_bytes": memory_bytes()["private_bytes"], "huge_pages": huge_pages,
    })
    Zygote(control, inherited, environment).serve()
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


def inheritance(
    shell: WorkerShell, streams: tuple[OutStream, OutStream], imports: list[str], environment_id: str
) -> Inheritance:
    """What this process hands on, once it has a title and its devices."""
    from looseleaf.worker.child import Inheritance, install_devices
    from looseleaf.worker.log import worker_logger

    # Here once: it is written into each logger of every package.
    worker_logger()
    inherited = Inheritance(shell, streams, imports, loaded_thread_libraries(), environment_id)
    install_devices("zygote")
    set_title("ll-zygote")
    return inherited


class Zygote:
    """Answers the daemon's control messages one at a time, in order."""

    def __init__(self, control: ControlSocket, inherited: Inheritance, environment: Environment) -> None:
        self._control = control
        self._inherited = inherited
        self._environment = environment

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
            if message["t"] == "STAT":
                return {"t": "STAT", "id": request_id, **memory_bytes()}
            if message["t"] != "FORK":
                raise InvalidArgument("UNKNOWN_MESSAGE", f"a zygote knows no {message['t']!r}")
            pid = self._fork(message, received)
        except OSError as error:
            return {"t": "ERR", "id": request_id, "errno": error.errno or errno.EIO, "text": str(error)}
        except LooseLeafError as error:
            return {"t": "ERR", "id": request_id, "errno": errno.EINVAL, "text": str(error)}
        return {"t": "FORKED", "id": request_id, "pid": pid}

    def _fork(self, message: Message, received: list[int]) -> int:
        from looseleaf.worker.child import Birth

        if fields.integer(message, "v") != PROTOCOL_VERSION:
            raise InvalidArgument("PROTOCOL_VERSION", f"this zygote speaks version {PROTOCOL_VERSION}")
        if len(received) != _FORK_FDS:
            raise InvalidArgument("FDS_MISSING", f"FORK needs {_FORK_FDS} fds, {len(received)} came")
        env = fields.mapping(message, "env", {})
        if not all(isinstance(value, str) for value in env.values()):
            raise InvalidArgument("FIELD_MALFORMED", "FORK's env must hold texts")
        imports = fields.texts(message, "imports", [])
        if not all(part.isidentifier() for name in imports for part in name.split(".")):
            raise InvalidArgument("FIELD_MALFORMED", "FORK's imports must be names of modules")
        kind = fields.text(message, "kind", "worker")
        channel, stdin, stdout, stderr = received
        birth = Birth(fields.text(message, "title"), env, channel, (stdin, stdout, stderr))
        become = self._become(kind, birth, imports)

        def enter() -> NoReturn:
            self._control.forget()
            become()

        forget_found_files()
        return fork_grandchild(enter)

    def _become(self, kind: str, birth: Birth, imports: list[str]) -> Callable[[], NoReturn]:
        """What the forked process is to do."""
        from looseleaf.worker.child import become_worker

        if kind == "worker":
            return lambda: become_worker(birth, self._inherited)
        if kind == "zygote":
            return lambda: become_node(birth, self._inherited, self._environment, imports)
        if kind == "probe":
            return lambda: become_probe(birth, self._inherited, imports)
        raise InvalidArgument("FIELD_MALFORMED", f"a zygote forks no {kind!r}")


if __name__ == "__main__":
    # The shell makes its own module `__main__`; the functions above must not lose their globals with this one.
    sys.exit(importlib.import_module("looseleaf.worker.zygote").main())
