"""One small unary call through our client and server, beside gRPC without them and a plain socket's ping-pong.

Ours adds deadlines, request ids, error translation, metrics and the health service's own work. Client and server are
two processes; calls follow one another. The kernel's own requests to its daemon use no gRPC; their row is a `manifest`
request, which the daemon passes on to the store.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from alternating import Task, alternate, publish, timed_s
from echo_process import BARE_METHOD, MESSAGE_BYTES
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pytest_benchmark.fixture import BenchmarkFixture
from state_process import StateProcess

from looseleaf.rpc.client import open_channel

ROUNDS = 10
CALLS_PER_ROUND = 50
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("echo")
    command = [sys.executable, str(Path(__file__).with_name("echo_process.py")), str(folder)]
    with (
        open(folder / "log", "w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate(timeout=LIMIT_S)


def socket_calls(address: str, calls: int) -> list[float]:
    """Round trips over a plain socket."""
    host, _, port = address.rpartition(":")
    family, where = (socket.AF_INET, (host, int(port))) if host else (socket.AF_UNIX, address)
    with socket.socket(family) as sock:
        sock.connect(where)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = bytes(MESSAGE_BYTES)

        def ping() -> None:
            sock.sendall(message)
            sock.recv(MESSAGE_BYTES, socket.MSG_WAITALL)

        ping()
        return [timed_s(ping) for _ in range(calls)]


async def timed_calls(call: Callable[[], Awaitable[Any]], calls: int) -> list[float]:
    """After one that opens the connection."""
    await call()
    found = []
    for _ in range(calls):
        began_s = time.perf_counter()
        await call()
        found.append(time.perf_counter() - began_s)
    return found


async def bare_calls(address: str, calls: int) -> list[float]:
    """gRPC without us."""
    async with grpc.aio.insecure_channel(address) as channel:
        say = channel.unary_unary(BARE_METHOD, None, None)
        return await timed_calls(lambda: say(bytes(MESSAGE_BYTES)), calls)


async def our_calls(address: str, calls: int) -> list[float]:
    """The health check of one of our servers."""
    async with open_channel(address, "store") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return await timed_calls(lambda: check(health_pb2.HealthCheckRequest(), timeout_s=LIMIT_S), calls)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all calls: gRPC's poller does not follow a process from loop to loop."""
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_unary_call(
    benchmark: BenchmarkFixture, addresses: dict[str, str], runner: asyncio.Runner, kind: str, smoke: bool
) -> None:
    calls = 1 if smoke else CALLS_PER_ROUND
    tasks: dict[str, Task] = {
        "ours": lambda: runner.run(our_calls(addresses[f"ours {kind}"], calls)),
        "bare gRPC": lambda: runner.run(bare_calls(addresses[f"bare {kind}"], calls)),
        "socket": lambda: socket_calls(addresses[f"raw {kind}"], calls),
    }
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS)
    publish(benchmark, rounds, "ours", f"unary call over {kind}", ("bare gRPC", None), ("socket", None))


def test_state_request(
    benchmark: BenchmarkFixture, addresses: dict[str, str], runner: asyncio.Runner, storage_cluster: Any,
    tmp_path: Path, smoke: bool,
) -> None:  # fmt: skip
    calls = 1 if smoke else CALLS_PER_ROUND
    with StateProcess(storage_cluster.kernel_socket(), tmp_path) as state:
        tasks: dict[str, Task] = {
            "ours": state.task("requests", calls),
            "bare gRPC": lambda: runner.run(bare_calls(addresses["bare unix"], calls)),
            "socket": lambda: socket_calls(addresses["raw unix"], calls),
        }
        rounds = alternate(tasks, rounds=1 if smoke else ROUNDS)
    what = "manifest request of a kernel, daemon to store"
    publish(benchmark, rounds, "ours", what, ("bare gRPC", None), ("socket", None))
