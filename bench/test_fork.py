"""From a fork request to a worker that is ready, against a fresh `python -c "import torch"`, in one run.

The ratio of the medians is to be at least 20, of the fresh median to the fork's 95th percentile at least 10 (design
§11). `make bench` prints the row and checks the ratios.
"""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.protocol.channel import Channel
from looseleaf.protocol.control import ControlSocket
from looseleaf.worker.thread_counts import THREAD_VARIABLES

ROUNDS = 20
FRESH_ROUNDS = 3
LIMIT_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def zygote() -> Iterator[ControlSocket]:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "looseleaf.worker.zygote", "--ctl-fd", str(theirs.fileno()), "--imports", "torch"],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
    )
    theirs.close()
    control = ControlSocket(ours)
    assert control.recv(LIMIT_S)[0]["t"] == "READY"
    yield control
    control.close()
    assert process.wait(LIMIT_S) == 0


def fork_to_ready(control: ControlSocket) -> tuple[int, Channel]:
    ours, theirs = socket.socketpair()
    with theirs, open(os.devnull, "r+b") as null:
        fds = [theirs.fileno(), null.fileno(), null.fileno(), null.fileno()]
        control.send({"t": "FORK", "v": 1, "id": 1, "title": "ll-worker:bench", "env": {}}, fds)
        reply, _ = control.recv(LIMIT_S)
    channel = Channel(ours)
    assert channel.recv(LIMIT_S)[0]["t"] == "hello"
    return int(reply["pid"]), channel


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def timed_s(function: Callable[..., object], *args: object) -> float:
    began_s = time.perf_counter()
    function(*args)
    return time.perf_counter() - began_s


def test_fork_to_ready_of_a_torch_zygote(benchmark: BenchmarkFixture, zygote: ControlSocket) -> None:
    workers: list[tuple[int, Channel]] = []

    def end_workers() -> None:
        while workers:
            pid, channel = workers.pop()
            channel.close()
            os.waitpid(pid, 0)

    benchmark.pedantic(lambda: workers.append(fork_to_ready(zygote)), setup=end_workers, rounds=ROUNDS, warmup_rounds=2)
    end_workers()
    if benchmark.disabled:
        return  # run once, to see that it runs
    fresh_s = statistics.median(timed_s(import_torch) for _ in range(FRESH_ROUNDS))
    times_s = sorted(benchmark.stats.stats.data)
    median_ratio = fresh_s / statistics.median(times_s)
    p95_ratio = fresh_s / times_s[int(0.95 * (len(times_s) - 1))]
    benchmark.extra_info.update(fresh_s=fresh_s, median_ratio=median_ratio, p95_ratio=p95_ratio)
    print(f"\nfresh import torch {fresh_s:.2f} s; fork to ready 1/{median_ratio:.0f} of it, p95 1/{p95_ratio:.0f}")
    assert median_ratio >= 20
    assert p95_ratio >= 10
