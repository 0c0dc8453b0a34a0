from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_fakes import down, until, within

from looseleaf.errors import LooseLeafError, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId
from looseleaf.services.worker_daemon import heartbeat as heartbeat_module
from looseleaf.services.worker_daemon.core.lease_table import HeldLease, LeaseTable
from looseleaf.services.worker_daemon.heartbeat import Heartbeat
from looseleaf.v1 import scheduler_pb2 as pb
from looseleaf.v1 import types_pb2


@dataclass
class FakeScheduler:
    """Answers heartbeats with what a test put here; counts those that are under way."""

    errors: list[LooseLeafError] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)
    heard: int = 0
    at_once: int = 0
    at_once_max: int = 0
    pools_asked: int = 0
    silent: bool = False
    retiring: bool = False
    gpu: pb.GpuDescription | None = None

    async def Heartbeat(self, _request: pb.HeartbeatRequest, *, timeout_s: float) -> pb.HeartbeatResponse:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.errors:
            raise self.errors.pop(0)
        self.heard += 1
        return pb.HeartbeatResponse(
            renewed_lease_ids=self.renewed, unknown_lease_ids=self.unknown, retiring=self.retiring
        )

    async def GetPool(self, _request: pb.GetPoolRequest, *, timeout_s: float) -> pb.GetPoolResponse:
        self.pools_asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        states = [
            pb.HostState(
                host=types_pb2.HostAddress(host_id=name, address=address), liveness="alive", gpu_count=1, gpu=self.gpu
            )
            for name, address in self.hosts.items()
        ]
        dead = pb.HostState(host=types_pb2.HostAddress(host_id="h9", address="unix:/h9"), liveness="dead")
        return pb.GetPoolResponse(hosts=[*states, dead])


def lease(number: int, expires_s: float) -> HeldLease:
    ids = LeaseId(f"l-{number}"), SessionId("s-1"), Epoch(1), ExecutionId(f"x-{number}")
    return HeldLease(*ids, (number,), None, 3, 10.0, 0.0, expires_s)


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def leases() -> LeaseTable:
    return LeaseTable(4)


@pytest.fixture
def heartbeat(scheduler: FakeScheduler, leases: LeaseTable) -> Heartbeat:
    return Heartbeat(scheduler, pb.HeartbeatRequest, leases, 0.001)


async def test_heartbeats_of_several_senders_are_one_at_a_time(heartbeat: Heartbeat, scheduler: FakeScheduler) -> None:
    await within(asyncio.gather(*(heartbeat.send() for _ in range(5))))
    assert (scheduler.heard, scheduler.at_once_max) == (5, 1)


async def test_renewal_counts_from_the_sending(
    heartbeat: Heartbeat, scheduler: FakeScheduler, leases: LeaseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 200.0, 300.0])
    monkeypatch.setattr(heartbeat_module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    leases.grant(lease(1, expires_s=5.0))
    scheduler.renewed = ["l-1", "l-unknown"]
    assert await heartbeat.send()
    assert leases.held()[0].expires_s == 110.0


async def test_lease_that_the_scheduler_does_not_know_is_dropped_unless_its_cell_runs(
    heartbeat: Heartbeat, scheduler: FakeScheduler, leases: LeaseTable
) -> None:
    for number in (1, 2):
        leases.grant(lease(number, expires_s=1e12))
    leases.use(LeaseId("l-2"), ExecutionId("x-2"), Epoch(1), 0.0)
    scheduler.unknown = ["l-1", "l-2"]
    await heartbeat.send()
    assert [item.lease_id for item in leases.held()] == ["l-2"]


async def test_lost_heartbeats_are_told_and_unused_leases_run_out(
    heartbeat: Heartbeat, scheduler: FakeScheduler, leases: LeaseTable
) -> None:
    scheduler.errors = [down("scheduler") for _ in range(3)]
    leases.grant(lease(1, expires_s=0.0))
    assert not await heartbeat.send()
    running = asyncio.create_task(heartbeat.run())
    await until(lambda: scheduler.heard >= 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert leases.held() == []


async def test_until_heard_waits_for_the_scheduler(heartbeat: Heartbeat, scheduler: FakeScheduler) -> None:
    scheduler.errors = [down("scheduler"), down("scheduler")]
    await within(heartbeat.until_heard())
    assert scheduler.heard == 1


async def test_host_id_taken_over_ends_the_heartbeats(heartbeat: Heartbeat, scheduler: FakeScheduler) -> None:
    scheduler.errors = [PreconditionFailed("STALE_INCARNATION", "another daemon")]
    with pytest.raises(PreconditionFailed, match="STALE_INCARNATION"):
        await within(heartbeat.run())


async def test_nudge_sends_at_once(scheduler: FakeScheduler, leases: LeaseTable) -> None:
    slow = Heartbeat(scheduler, pb.HeartbeatRequest, leases, 1000.0)
    running = asyncio.create_task(slow.run())
    await until(lambda: scheduler.heard == 1)
    slow.nudge()
    await until(lambda: scheduler.heard == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("turns", range(4))
async def test_stop_that_comes_with_a_nudge_ends_the_heartbeats(
    scheduler: FakeScheduler, leases: LeaseTable, turns: int
) -> None:
    slow = Heartbeat(scheduler, pb.HeartbeatRequest, leases, 1000.0)
    running = asyncio.create_task(slow.run())
    # Sent twice: it waits for the next by now.
    await until(lambda: scheduler.heard == 1)
    slow.nudge()
    await until(lambda: scheduler.heard == 2)
    for _turn in range(8):
        await asyncio.sleep(0)
    slow.nudge()
    for _turn in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running}, timeout=5)
    assert running.cancelled()


async def test_addresses_are_kept_for_a_while_but_a_new_host_is_found(
    heartbeat: Heartbeat, scheduler: FakeScheduler
) -> None:
    scheduler.hosts = {"h0": "unix:/h0"}
    assert await heartbeat.addresses() == await heartbeat.addresses(["h0"]) == {"h0": "unix:/h0"}
    assert scheduler.pools_asked == 1
    scheduler.hosts["h1"] = "unix:/h1"
    assert set(await heartbeat.addresses(["h1"])) == {"h0", "h1"}
    scheduler.errors = [down("scheduler")]
    assert set(await heartbeat.addresses(["h2"])) == {"h0", "h1"}, "old ones while the scheduler is away"


def test_snapshot_fault_is_not_hidden(scheduler: FakeScheduler, leases: LeaseTable) -> None:
    def fail() -> Any:
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Heartbeat(scheduler, fail, leases, 1.0).send())


async def test_gpu_of_the_pool_is_told_and_kept_while_the_scheduler_is_silent(
    heartbeat: Heartbeat, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.hosts = {"h0": "unix:/h0"}
    scheduler.gpu = pb.GpuDescription(name="NVIDIA H100", memory_bytes=80 << 30, major=9, multi_processors=132)
    found = await within(heartbeat.pool_gpu())
    assert found is not None and (found.name, found.major) == ("NVIDIA H100", 9)
    monkeypatch.setattr(heartbeat_module, "HOSTS_CACHE_S", -1.0)
    monkeypatch.setattr(heartbeat_module, "POOL_GPU_TIMEOUT_S", 0.01)
    scheduler.silent = True
    assert await within(heartbeat.pool_gpu()) == found
    assert scheduler.pools_asked == 2


async def test_host_that_is_to_end_hurries_once(heartbeat: Heartbeat, scheduler: FakeScheduler) -> None:
    told: list[int] = []
    heartbeat.on_retiring = lambda: told.append(len(told))
    for retiring, calls in ((False, 0), (True, 1), (True, 1), (False, 1), (True, 2)):
        scheduler.retiring = retiring
        await heartbeat.send()
        assert len(told) == calls
