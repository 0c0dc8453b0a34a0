"""From a fork request to a worker that is ready, beside fresh processes and beside a zygote that lacks an import."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from alternating import Target, alternate, publish, timed_s, timing
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.protocol.channel import Channel
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.rpc import ERROR, OK

ROUNDS = 5
# One fresh process takes as long as dozens of forks.
FORKS_PER_ROUND = 10
LIMIT_S = 60.0
QUESTION_ID = 7
TOGETHER = 8
TOGETHER_TARGET = Target("ratio", 1 / 15, "<= 1/15")
HAD_TARGET = Target("ratio", 1 / 5, "<= 1/5")
TARGETS = (Target("ratio", 1 / 20, "<= 1/20"), Target("ratio", 1 / 10, "p95 <= 1/10", tail=True))
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def zygote(one_thread: None) -> Iterator[ControlSocket]:
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "looseleaf.worker.zygote", "--ctl-fd", str(theirs.fileno()), "--imports", "torch"],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    control = ControlSocket(ours)
    while (kind := control.recv(LIMIT_S)[0]["t"]) == "IMPORTING":
        continue
    assert kind == "READY"
    yield control
    control.close()
    assert process.wait(LIMIT_S) == 0
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.fixture(scope="module")
def pandas_node(zygote: ControlSocket) -> Iterator[ControlSocket]:
    """A zygote below the one with torch."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        pid = ask_for(zygote, theirs, kind="zygote", imports=["pandas"])
    control = ControlSocket(ours)
    while (first := control.recv(LIMIT_S)[0])["t"] == "IMPORTING":
        continue
    assert first["t"] == "READY", first
    yield control
    control.close()
    os.waitpid(pid, 0)


def ask_for(control: ControlSocket, channel: socket.socket, **more: object) -> int:
    """The pid of what was forked with `channel`."""
    with open(os.devnull, "r+b") as null:
        fds = [channel.fileno(), null.fileno(), null.fileno(), null.fileno()]
        control.send({"t": "FORK", "v": 1, "id": 1, "title": "ll-bench", "env": {}, **more}, fds)
        reply, _ = control.recv(LIMIT_S)
    assert reply["t"] == "FORKED", reply
    return int(reply["pid"])


def fork_to_ready(control: ControlSocket, workers: list[tuple[int, Channel]]) -> None:
    fork_several(control, workers, 1)


def fork_several(control: ControlSocket, workers: list[tuple[int, Channel]], count: int) -> None:
    for _ in range(count):
        ours, theirs = socket.socketpair()
        with theirs:
            workers.append((ask_for(control, theirs), Channel(ours)))
    for _, channel in workers[-count:]:
        assert channel.recv(LIMIT_S)[0]["t"] == "hello"
        # Ready is who answers: of a request that no worker knows, with a refusal.
        channel.send({"t": "are_you_there", "id": QUESTION_ID})
    for _, channel in workers[-count:]:
        answer = channel.recv(LIMIT_S)[0]
        assert (answer["t"], answer["id"]) == (ERROR, QUESTION_ID), answer


def fork_with_pandas(control: ControlSocket, workers: list[tuple[int, Channel]]) -> None:
    """Until the worker has an empty session and pandas."""
    fork_to_ready(control, workers)
    channel = workers[-1][1]
    channel.send({"t": "prepare", "id": 1, "session_id": "s-bench", "epoch": 1, "version": 0, "names": [],
                  "imports": ["pandas"], "cwd": None})  # fmt: skip
    while (message := channel.recv(LIMIT_S)[0])["t"] != OK:
        if message["t"] == "importing":
            continue
        assert message["t"] == "manifest", message
        body = {"version": 0, "epoch": 1, "durable_version": 0, "manifest": None}
        channel.send({"t": OK, "id": message["id"], **body})
    assert not message.get("failed_imports"), message


def end(workers: list[tuple[int, Channel]]) -> None:
    for pid, channel in workers:
        channel.close()
        os.waitpid(pid, 0)


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def import_torch_together(count: int) -> None:
    started = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(count)]
    assert [process.wait() for process in started] == [0] * count


def test_fork_to_ready_of_a_torch_zygote(benchmark: BenchmarkFixture, zygote: ControlSocket, smoke: bool) -> None:
    def forks() -> list[float]:
        found = []
        for _ in range(1 if smoke else FORKS_PER_ROUND):
            workers: list[tuple[int, Channel]] = []
            found.append(timed_s(fork_to_ready, zygote, workers))
            end(workers)
        return found

    tasks = {"fork": forks, "import torch": timing(import_torch)}
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    publish(benchmark, rounds, "fork", "fork to ready worker", *(("import torch", target) for target in TARGETS))


def test_eight_forks_at_once(benchmark: BenchmarkFixture, zygote: ControlSocket, smoke: bool) -> None:
    count = 2 if smoke else TOGETHER

    def forks() -> float:
        workers: list[tuple[int, Channel]] = []
        took_s = timed_s(fork_several, zygote, workers, count)
        end(workers)
        return took_s

    tasks = {"eight forks": forks, "eight of import torch": timing(import_torch_together, count)}
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    reference = ("eight of import torch", TOGETHER_TARGET)
    publish(benchmark, rounds, "eight forks", "eight forks to ready workers", reference)


def test_fork_to_pandas(
    benchmark: BenchmarkFixture, zygote: ControlSocket, pandas_node: ControlSocket, smoke: bool
) -> None:
    def forks(control: ControlSocket) -> float:
        workers: list[tuple[int, Channel]] = []
        took_s = timed_s(fork_with_pandas, control, workers)
        end(workers)
        return took_s

    tasks = {"node has pandas": lambda: forks(pandas_node), "worker imports pandas": lambda: forks(zygote)}
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    publish(benchmark, rounds, "node has pandas", "fork to prepared worker", ("worker imports pandas", HAD_TARGET))
