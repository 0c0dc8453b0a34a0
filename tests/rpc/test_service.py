"""The life of a service in this process; `test_service_main.py` has it as a process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from looseleaf.config import SchedulerConfig
from looseleaf.errors import InvalidArgument, PreconditionFailed
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service, install_signals

LIMIT_S = 20.0


async def test_failing_stop_callbacks_keep_no_other_from_running(tmp_path: Path) -> None:
    ended: list[str] = []

    async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
        async def close(name: str = "database") -> None:
            ended.append(name)

        async def fail() -> None:
            raise OSError("planted")

        def fail_early() -> None:
            raise OSError("planted")

        service.on_stop(close)
        service.on_stop(fail)
        service.on_stopping(fail_early)
        service.on_stopping(lambda: ended.append("streams"))
        service.request_stop("test")
        return []

    service = Service("echo", SchedulerConfig(run_dir=tmp_path))
    assert await service.run(build) == 1
    assert ended == ["streams", "database"]


async def test_first_signal_in_a_stop_that_began_by_itself_does_not_cut_it_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()
    service = Service("echo", SchedulerConfig(run_dir=tmp_path))
    request_stop = service.request_stop
    monkeypatch.setattr(service, "stop_now", lambda code: handled.put_nowait(f"now {code}"))
    monkeypatch.setattr(service, "request_stop", lambda why: (request_stop(why), handled.put_nowait("requested")))
    install_signals(service)
    try:
        request_stop("task failed", exit_code=1)
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(handled.get(), LIMIT_S) == "requested"
        signal.raise_signal(signal.SIGINT)
        assert await asyncio.wait_for(handled.get(), LIMIT_S) == f"now {128 + signal.SIGINT}"
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.leaks_ok("gRPC keeps the listener of a server that was never started until the process ends")
async def test_taken_metrics_port_is_named_and_what_was_built_is_closed(tmp_path: Path) -> None:
    ended: list[str] = []

    async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
        async def close() -> None:
            ended.append("database")

        service.on_stop(close)
        return []

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = Service("echo", SchedulerConfig(run_dir=tmp_path, metrics_port=taken.getsockname()[1]))
        with pytest.raises(PreconditionFailed, match=r"ADDRESS_IN_USE.*--metrics-port"):
            await service.run(build)
    assert ended == ["database"]


@pytest.mark.leaks_ok("gRPC keeps the listener of a server that was never started until the process ends")
async def test_metrics_beyond_loopback_are_refused_unless_remote_tcp_is_allowed(tmp_path: Path) -> None:
    async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
        return []

    service = Service("echo", SchedulerConfig(run_dir=tmp_path, metrics_port=9400, metrics_host="0.0.0.0"))
    with pytest.raises(InvalidArgument, match="ADDRESS_NOT_LOOPBACK"):
        await service.run(build)
