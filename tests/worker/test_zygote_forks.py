"""Forks that the system refuses, and forks of a process whose libraries have computed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

COMPUTES = """
import importlib.util, numpy, torch
def compute():
    a = torch.rand(300, 300, requires_grad=True)
    (a @ a).exp().sum().backward()
    numpy.ones((300, 300)) @ numpy.ones((300, 300))
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.cluster import KMeans
        KMeans(3, n_init=1).fit(numpy.random.rand(2000, 8))
compute()
"""


# A process that forks while the system refuses it: what it says, children and descriptors that are left.
REFUSED = """
import os
from looseleaf.worker.zygote_forks import fork_grandchild
fds = len(os.listdir("/proc/self/fd"))
try:
    fork_grandchild(lambda: print("child"))
except OSError as error:
    print("parent", error.errno)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(0)
print(len(os.listdir("/proc/self/fd")) == fds)
"""
# A stand-in for the daemon, and below it one for the zygote; both kinds of fork hooks are counted.
FORKED = """
import ctypes, json, os, random, sys, threading
from looseleaf.subreaper import become_subreaper
become_subreaper()
daemon = os.getpid()
read_fd, write_fd = os.pipe()
if os.fork() == 0:
    from looseleaf.worker.zygote_forks import fork_grandchild
    libc = ctypes.CDLL(None)
    counts = [0, 0, 0]
    def counting(index):
        def count():
            counts[index] += 1
        return ctypes.CFUNCTYPE(None)(count)
    native = [counting(index) for index in range(3)]
    hooks, memory = [], [0]
    os.register_at_fork(before=lambda: hooks.append("before"), after_in_parent=lambda: hooks.append("parent"),
                        after_in_child=lambda: hooks.append("child"))
    libc.__register_atfork(*native, None)
    def enter():
        memory[0] = 1
        body = {"hooks": hooks, "native": counts, "parent": os.getppid(), "pid": os.getpid(), "group": os.getpgid(0),
                "main": threading.current_thread() is threading.main_thread(), "random": random.random()}
        os.write(write_fd, json.dumps(body).encode() + b"\\n")
        os._exit(7)
    pid = fork_grandchild(enter)
    left = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    body = {"hooks": hooks, "native": counts, "child": pid, "memory": memory, "left": len(left),
            "random": random.random()}
    os.write(write_fd, json.dumps(body).encode() + b"\\n")
    os._exit(0)
os.close(write_fd)
said = [json.loads(line) for line in open(read_fd)]
child, zygote = sorted(said, key=lambda one: "child" in one)
status = os.waitstatus_to_exitcode(os.waitpid(zygote["child"], 0)[1])
os.wait()
print(json.dumps({
    "hooks of the parent": zygote["hooks"], "hooks of the child": child["hooks"],
    "native hooks": [zygote["native"], child["native"]], "parent is the subreaper": child["parent"] == daemon,
    "pid is the child's": child["pid"] == zygote["child"], "group is the child's own": child["group"] != os.getpgid(0),
    "children of the zygote": zygote["left"], "memory is the child's own": zygote["memory"] == [0],
    "status": status, "main thread": child["main"], "random states differ": child["random"] != zygote["random"],
}))
"""
KILLED = """
import ctypes, os, signal
from looseleaf.worker.zygote_forks import fork_grandchild
zygote = os.getpid()
end = ctypes.CFUNCTYPE(None)(lambda: os.getpid() != zygote and os.kill(os.getpid(), signal.SIGKILL) or None)
ctypes.CDLL(None).__register_atfork(end, None, None, None)
try:
    fork_grandchild(lambda: os._exit(0))
except OSError as error:
    print(error.errno)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(0)
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By function: a library that takes its place and refuses with `REFUSE_ERRNO`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make a system that refuses forks")
    folder = tmp_path_factory.mktemp("refusals")
    for name in ("fork", "vfork"):
        text = f"""
        #include <errno.h>
        #include <stdlib.h>
        #include <sys/types.h>
        pid_t {name}(void) {{ errno = atoi(getenv("REFUSE_ERRNO")); return -1; }}
        """
        (folder / f"{name}.c").write_text(text)
        files = str(folder / f"{name}.so"), str(folder / f"{name}.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", *files], check=True)
    return {name: str(folder / f"{name}.so") for name in ("fork", "vfork")}


@pytest.mark.parametrize(("which", "number"), [("vfork", errno.EAGAIN), ("fork", errno.ENOMEM)])
def test_fork_that_the_system_refuses_says_why_and_leaves_nothing(
    refusals: dict[str, str], which: str, number: int
) -> None:
    env = {**os.environ, "LD_PRELOAD": refusals[which], "REFUSE_ERRNO": str(number), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-P", "-c", REFUSED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["parent", str(number), "0", "True"], done.stderr


def test_forked_process_is_the_daemons_and_runs_the_hooks_of_a_fork_once() -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-P", "-c", FORKED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {
        "hooks of the parent": ["before", "parent"], "hooks of the child": ["before", "child"],
        "native hooks": [[1, 1, 0], [1, 0, 1]], "parent is the subreaper": True, "pid is the child's": True,
        "group is the child's own": True, "children of the zygote": 0, "memory is the child's own": True,
        "status": 7, "main thread": True, "random states differ": True,
    }, done.stderr  # fmt: skip


def test_process_in_between_that_is_killed_is_an_error_and_not_a_child() -> None:
    # A handler of the library runs in it, before its fork.
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(errno.EIO), "0"], done.stderr


@pytest.mark.slow
def test_worker_computes_with_more_threads_after_its_zygote_has_computed(
    start_zygote: Callable[..., Any], make_worker: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "computes_at_import.py").write_text(COMPUTES)
    root = str(Path(__file__).resolve().parents[2])
    zygote = start_zygote("torch,computes_at_import", PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert zygote.first["failed"] == []
    if importlib.util.find_spec("sklearn") is None:
        assert zygote.first["threads"] == 1
    worker = make_worker(zygote=zygote, LOOSELEAF_THREADS="2")
    cell = "import torch, computes_at_import\ncomputes_at_import.compute()\nprint(torch.get_num_threads())"
    assert worker.run(cell)["status"] == "ok"
    assert worker.text() == "2\n"
