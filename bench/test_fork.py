"""From a fork request to a worker that is ready, beside a fresh `python -c "import torch"`."""

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

ROUNDS = 5
# One fresh process takes as long as dozens of forks.
FORKS_PER_ROUND = 10
LIMIT_S = 60.0
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


def fork_to_ready(control: ControlSocket, workers: list[tuple[int, Channel]]) -> None:
    ours, theirs = socket.socketpair()
    with theirs, open(os.devnull, "r+b") as null:
        fds = [theirs.fileno(), null.fileno(), null.fileno(), null.fileno()]
        control.send({"t": "FORK", "v": 1, "id": 1, "title": "ll-worker:bench", "env": {}}, fds)
        reply, _ = control.recv(LIMIT_S)
    channel = Channel(ours)
    assert channel.recv(LIMIT_S)[0]["t"] == "hello"
    workers.append((int(reply["pid"]), channel))


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def test_fork_to_ready_of_a_torch_zygote(benchmark: BenchmarkFixture, zygote: ControlSocket, smoke: bool) -> None:
    def forks() -> list[float]:
        found = []
        for _ in range(1 if smoke else FORKS_PER_ROUND):
            workers: list[tuple[int, Channel]] = []
            found.append(timed_s(fork_to_ready, zygote, workers))
            for pid, channel in workers:
                channel.close()
                os.waitpid(pid, 0)
        return found

    tasks = {"fork": forks, "import torch": timing(import_torch)}
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    publish(benchmark, rounds, "fork", "fork to ready worker", *(("import torch", target) for target in TARGETS))
