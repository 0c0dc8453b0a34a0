from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.config import SchedulerConfig
from looseleaf.rpc.address import is_listening
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.service_main import EXIT_CONFIG, EXIT_FAULT, EXIT_REFUSED, flag_parser
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("echo_service.py")
LIMIT_S = 30.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def begin(*flags: str, pass_fds: tuple[int, ...] = (), **environ: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "LOOSELEAF_RUN_DIR": str(tmp_path), **environ}
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--shutdown-grace-s", "5", *flags],
            env=env, stderr=subprocess.PIPE, text=True, pass_fds=pass_fds, cwd=tmp_path)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        time.sleep(0.01)


async def holds(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def accepts(path: Path) -> bool:
    return path.exists() and is_listening(path)


def events(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    _out, err = process.communicate(timeout=LIMIT_S)
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


def test_sigterm_stops_in_order_and_leaves_no_socket(start: Start, tmp_path: Path) -> None:
    process = start(ECHO_STOP_FILE=str(tmp_path / "stopped"))
    path = tmp_path / "scheduler.sock"
    wait_until(lambda: is_listening(path))
    process.send_signal(signal.SIGTERM)
    names = [event["event"] for event in events(process)]
    assert process.returncode == 0
    # It listens before it says that it has started: the signal may come between the two.
    assert "service_stop_requested" in names and names[-1] == "service_stopped"
    assert (tmp_path / "stopped").read_text() == "stopped"
    assert not path.exists()


async def test_running_call_finishes_within_the_grace_after_sigterm(start: Start, tmp_path: Path) -> None:
    began = tmp_path / "began"
    process = start(ECHO_SLOW_S="0.3", ECHO_CALL_FILE=str(began))
    wait_until(lambda: is_listening(tmp_path / "scheduler.sock"))
    async with open_channel(f"unix:{tmp_path}/scheduler.sock", peer="scheduler") as channel:
        await channel.wait_ready(LIMIT_S)
        task = asyncio.create_task(
            SchedulerServiceStub(channel).GetPool(scheduler_pb2.GetPoolRequest(), timeout_s=LIMIT_S))
        await holds(began.exists)
        process.send_signal(signal.SIGTERM)
        assert (await task).ready
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


async def test_second_signal_ends_at_once(start: Start, tmp_path: Path) -> None:
    began = tmp_path / "began"
    process = start("--shutdown-grace-s", "600", ECHO_SLOW_S="600", ECHO_CALL_FILE=str(began))
    path = tmp_path / "scheduler.sock"
    wait_until(lambda: is_listening(path))
    async with open_channel(f"unix:{path}", peer="scheduler") as channel:
        task = asyncio.create_task(
            SchedulerServiceStub(channel).GetPool(scheduler_pb2.GetPoolRequest(), timeout_s=600))
        await holds(began.exists)
        process.send_signal(signal.SIGTERM)
        await holds(lambda: not accepts(path))
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
        task.cancel()
    assert process.returncode == 128 + signal.SIGTERM
    assert not path.exists()


@pytest.mark.parametrize("environ", [{}, {"ECHO_HANG": "1"}])
def test_closed_lifeline_ends_the_service_even_with_a_stuck_loop(
    start: Start, tmp_path: Path, environ: dict[str, str],
) -> None:
    reading, writing = os.pipe()
    process = start(
        "--lifeline-fd", str(reading), "--lifeline-extra-s", "0.2", "--shutdown-grace-s", "0",
        pass_fds=(reading,), **environ,
    )
    os.close(reading)
    wait_until((tmp_path / "scheduler.sock").exists)
    os.close(writing)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == (EXIT_FAULT if environ else 0)


def test_sigterm_during_a_long_start_stops_at_once(start: Start, tmp_path: Path) -> None:
    process = start(ECHO_BUILD_HANG="1", ECHO_STOP_FILE=str(tmp_path / "stopped"))
    wait_until((tmp_path / "scheduler.sock").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert (tmp_path / "stopped").exists()
    assert not (tmp_path / "scheduler.sock").exists()


def test_metrics_are_served_on_loopback(start: Start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def answers() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    process = start("--metrics-port", str(port))
    # The socket of the calls is there first.
    wait_until(answers)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        assert b"looseleaf_rpc_requests_total" in answer.read()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def test_failed_background_task_stops_the_service_with_a_fault(start: Start, tmp_path: Path) -> None:
    process = start(ECHO_FAIL="1")
    logged = events(process)
    assert process.returncode == EXIT_FAULT
    assert "background_task_failed" in [event["event"] for event in logged]
    assert not (tmp_path / "scheduler.sock").exists()


def test_second_server_on_the_address_refuses_to_start(start: Start, tmp_path: Path) -> None:
    first = start()
    wait_until(lambda: is_listening(tmp_path / "scheduler.sock"))
    second = start()
    logged = events(second)
    assert second.returncode == EXIT_REFUSED
    assert logged[-1]["reason"] == "ADDRESS_IN_USE"
    assert is_listening(tmp_path / "scheduler.sock")
    assert first.poll() is None


def test_bad_setting_is_named_on_one_line(start: Start) -> None:
    process = start("--lease-ttl-ms", "soon")
    _out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == EXIT_CONFIG
    assert "lease_ttl_ms" in err
    assert "Traceback" not in err


def test_flags_cover_every_field_and_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOSELEAF_SCHEDULER_LEASE_TTL_MS", "500")
    flags = vars(flag_parser("scheduler", SchedulerConfig).parse_args(["--lease-ttl-ms", "700"]))
    assert set(SchedulerConfig.model_fields) <= set(flags)
    assert SchedulerConfig(lease_ttl_ms=flags["lease_ttl_ms"]).lease_ttl_ms == 700
    assert SchedulerConfig().lease_ttl_ms == 500
