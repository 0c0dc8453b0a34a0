"""Forks that the system refuses or makes in its own way, and forks of a process whose libraries have computed."""

from __future__ import annotations

import ctypes
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
    cpus = sorted(os.sched_getaffinity(0))[:2]
    def cpus_told():
        told = []
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            told.append(libc.sched_getcpu())
        os.sched_setaffinity(0, cpus)
        return told
    hooks, memory = [], [0]
    os.register_at_fork(before=lambda: hooks.append("before"), after_in_parent=lambda: hooks.append("parent"),
                        after_in_child=lambda: hooks.append("child"))
    libc.__register_atfork(*native, None)
    def enter():
        memory[0] = 1
        body = {"hooks": hooks, "native": counts, "parent": os.getppid(), "pid": os.getpid(), "group": os.getpgid(0),
                "main": threading.current_thread() is threading.main_thread(), "random": random.random(),
                "cpus": cpus_told() == cpus}
        os.write(write_fd, json.dumps(body).encode() + b"\\n")
        os._exit(7)
    pid = fork_grandchild(enter)
    left = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    body = {"hooks": hooks, "native": counts, "child": pid, "memory": memory, "left": len(left),
            "random": random.random(), "cpus": cpus_told() == cpus}
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
    "CPUs are told as they change": [zygote["cpus"], child["cpus"]],
}))
"""
# The process in between is killed by a handler of a library: whether a child came, as said and as seen.
KILLED = """
import os, signal
from looseleaf.subreaper import become_subreaper
from looseleaf.worker.zygote_forks import fork_grandchild
become_subreaper()
read_fd, write_fd = os.pipe()
said, error = [], None
def enter():
    os.write(write_fd, b"%d " % os.getpid())
    os._exit(0)
try:
    said.append(fork_grandchild(enter))
except OSError as raised:
    error = raised
os.close(write_fd)
with open(read_fd) as pipe:
    seen = [int(pid) for pid in pipe.read().split()]
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print(said == seen, len(said), error)
"""
LOST = f"[Errno {errno.EIO}] the process in between was ended before its fork was done"


def library(folder: Path, name: str, text: str) -> str:
    """A path for `LD_PRELOAD`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make a library that takes the system's place")
    (folder / f"{name}.c").write_text(text)
    files = str(folder / f"{name}.so"), str(folder / f"{name}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", *files], check=True)
    return files[0]


def said_by(script: str, **env: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **env}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("which", "number"), [("vfork", errno.EAGAIN), ("fork", errno.ENOMEM)])
def test_fork_that_the_system_refuses_says_why_and_leaves_nothing(tmp_path: Path, which: str, number: int) -> None:
    text = f"""
    #include <errno.h>
    #include <sys/types.h>
    pid_t {which}(void) {{ errno = {number}; return -1; }}
    """
    said = said_by(REFUSED, LD_PRELOAD=library(tmp_path, "refuses", text))
    assert said.split() == ["parent", str(number), "0", "True"]


# As emulators and some sandboxes do: the process in between has a copy of the memory.
PLAIN_VFORK = """
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
pid_t vfork(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "__register_atfork"), reason="the C library is not glibc: no hooks to count"
)
@pytest.mark.parametrize("memory", ["shared", "copied"])
def test_forked_process_is_the_daemons_and_runs_the_hooks_of_a_fork_once(tmp_path: Path, memory: str) -> None:
    env = {"LD_PRELOAD": library(tmp_path, "plain", PLAIN_VFORK)} if memory == "copied" else {}
    assert json.loads(said_by(FORKED, **env)) == {
        "hooks of the parent": ["before", "parent"], "hooks of the child": ["before", "child"],
        # The process in between calls them, and counts in the zygote's memory only if that is shared.
        "native hooks": [[1, 1, 0] if memory == "shared" else [0, 0, 0], [1, 0, 1]],
        "parent is the subreaper": True, "pid is the child's": True,
        "group is the child's own": True, "children of the zygote": 0, "memory is the child's own": True,
        "status": 7, "main thread": True, "random states differ": True,
        # With one CPU alone they cannot change.
        "CPUs are told as they change": [True, True],
    }  # fmt: skip


@pytest.mark.parametrize("memory", ["shared", "copied"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_process_in_between_that_is_killed_is_an_error_without_a_child_or_none(
    tmp_path: Path, when: str, memory: str
) -> None:
    handlers = "end, 0, 0" if when == "before" else "0, end, 0"
    text = f"""{PLAIN_VFORK if memory == "copied" else ""}
    #include <pthread.h>
    #include <signal.h>
    #include <unistd.h>
    static pid_t zygote;
    static void end(void) {{ if (getpid() != zygote) kill(getpid(), SIGKILL); }}
    __attribute__((constructor)) static void begin(void) {{ zygote = getpid(); pthread_atfork({handlers}); }}
    """
    agree, count, error = said_by(KILLED, LD_PRELOAD=library(tmp_path, "kills", text)).strip().split(" ", 2)
    assert agree == "True"
    # Killed after its fork, it may have a child that has begun.
    assert (count, error) in [("0", LOST), ("1", "None")][: 1 if when == "before" else 2]


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
