"""A throw-away process that imports a set of packages and tells whether a zygote may hold them (import-cache study §3).

Forked from the zygote of the node to be built on, so that combinations count; or exec'ed as `python -P -m
looseleaf.worker.probe --fd N --base a,b --imports c,d` where none can fork. It says its progress as lines of JSON:
`{"begin": NAME}` before each import, `{"took": [NAME, SECONDS], "modules": [...]}` after it, with the modules that came
by it, `{"result": {...}}` at the end.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from looseleaf.subreaper import become_subreaper
from looseleaf.units import GIB, KIB
from looseleaf.worker.fork_readiness import become_ready_to_import
from looseleaf.worker.isolation import IMPORT_LIMIT_S, end_after, leave_the_network
from looseleaf.worker.probe_checks import (
    Finding,
    Surroundings,
    children,
    failure,
    in_bad_fork,
    thread_count,
    unclean_since,
)
from looseleaf.worker.probe_origins import foreign_module, installed_folders
from looseleaf.worker.zygote_forks import stand_alone
from looseleaf.worker.zygote_imports import memory_bytes

if TYPE_CHECKING:
    from looseleaf.worker.child import Birth, Inheritance

# A forked process that has not answered by then never will.
SMOKE_LIMIT_S: Final = 5.0
# Above what any package needs to be imported; one that takes more fails with a MemoryError.
DATA_BYTES_MAX: Final = 8 * GIB
DETAIL_CHARS_MAX: Final = 300
MODULES_MAX: Final = 20_000
# People wait for cells, nobody for a probe.
NICENESS: Final = 10
_DIED: Final = b""


def become_probe(birth: Birth, inherited: Inheritance, imports: list[str]) -> NoReturn:
    """Turns a process that was forked from a zygote into a probe. Never returns, never raises."""
    try:
        stand_alone(birth)
        os.set_inheritable(birth.channel_fd, False)
        become_ready_to_import()
        run_probe(birth.channel_fd, imports, within=inherited.shell.builtin_trap)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(0)


def run_probe(
    fd: int, imports: Sequence[str], *, within: AbstractContextManager[Any] | None = None,
    smoke_limit_s: float = SMOKE_LIMIT_S, limit_s: float = IMPORT_LIMIT_S,
) -> None:
    """Imports each of `imports` in this process and writes to `fd` what came of it; spoils this process.

    It stops at the first import that is not clean. At the end no process is left that the imports started. After
    `limit_s` this process is ended, if the daemon that should do so earlier is gone.
    """
    end_after(limit_s)
    has_network = not _confine()
    before, folders = Surroundings.here(), installed_folders()
    modules, private_bytes, threads = set(sys.modules), memory_bytes()["private_bytes"], thread_count()
    finding: Finding | None = None
    culprit, pid = "", os.getpid()
    with within if within is not None else nullcontext():
        for name in imports:
            _say(fd, {"begin": name})
            there, began_s = set(sys.modules), time.monotonic()
            finding = _import(name) or unclean_since(before) or foreign_module(sys.modules.keys() - modules, folders)
            if os.getpid() != pid:
                # A process that the import forked, and that went on here.
                os._exit(0)
            took = [name, round(time.monotonic() - began_s, 4)]
            _say(fd, {"took": took, "modules": sorted(sys.modules.keys() - there)[:MODULES_MAX]})
            if finding is not None:
                culprit = name
                break
    if finding is None and (finding := _fork_and_use(threads, smoke_limit_s)) is not None:
        culprit = imports[-1] if imports else ""
    verdict, detail = finding or ("clean", "")
    came = sorted(sys.modules.keys() - modules)[:MODULES_MAX]
    _end_children()
    _say(fd, {"result": {
        "verdict": verdict, "culprit": culprit, "detail": detail[:DETAIL_CHARS_MAX],
        "private_bytes": max(0, memory_bytes()["private_bytes"] - private_bytes), "modules": came,
        "has_network": has_network,
    }})  # fmt: skip


def _confine() -> bool:
    """Whether no other host can be reached from here on."""
    become_subreaper()
    is_apart = leave_the_network()
    with suppress(ValueError, OSError):
        # A lower hard limit stays as it is.
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with suppress(OSError):
        os.nice(NICENESS)
    return is_apart


def _import(name: str) -> Finding | None:
    try:
        importlib.import_module(name)
    except BaseException as error:
        return failure(error)
    return None


def _fork_and_use(threads_before: int, limit_s: float) -> Finding | None:
    """What a process that is forked from this one shows; and whether the threads that came are gone after a fork."""
    answer = _forked_answer(_smoke, limit_s)
    if answer is None:
        return "hang", "a process forked after it does not answer"
    if answer == _DIED:
        return "error", "a process forked after it dies"
    if answer != b"fine":
        return "cuda", "torch refuses CUDA in a process forked after it"
    # OpenBLAS ends its threads at a fork and makes new ones when it computes.
    left = thread_count() - threads_before
    return ("threads", f"leaves {left} threads of a native library") if left > 0 else None


def _smoke() -> bytes:
    if in_bad_fork():
        return b"bad fork"
    gc.collect()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.ones((64, 64)) @ numpy.ones((64, 64))
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "ones"):
        torch.ones(64, 64) @ torch.ones(64, 64)
    return b"fine"


def _forked_answer(ask: Callable[[], bytes], limit_s: float) -> bytes | None:
    """What `ask` gives in a forked process; empty if that died, None if it did not answer in time."""
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, ask())
        finally:
            os._exit(0)
    os.close(write_fd)
    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    try:
        return os.read(read_fd, KIB) if poll.poll(limit_s * 1000) else None
    finally:
        os.close(read_fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _end_children() -> None:
    # Each death may bring this subreaper grandchildren.
    while pids := children():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _say(fd: int, line: dict[str, Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a probe that was exec'ed. Returns 0 if it came to a result."""
    parser = argparse.ArgumentParser(prog="looseleaf.worker.probe")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--base", default="", help="comma-separated modules that the node has already")
    parser.add_argument("--imports", default="", help="comma-separated modules to try")
    options = parser.parse_args(argv)
    os.set_inheritable(options.fd, False)
    from looseleaf.worker.shell import build_shell

    gc.disable()
    end_after(IMPORT_LIMIT_S)
    trap = build_shell().builtin_trap
    with trap:
        for name in filter(None, options.base.split(",")):
            _import(name)
    with socket.socket(fileno=options.fd) as channel:
        run_probe(channel.fileno(), [name for name in options.imports.split(",") if name], within=trap)
    return 0


if __name__ == "__main__":
    # The shell makes its own module `__main__`; the functions above must not lose their globals with this one.
    status = importlib.import_module("looseleaf.worker.probe").main()
    # What the imports left for the interpreter's end is nobody's business.
    os._exit(status)
