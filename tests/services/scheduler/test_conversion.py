"""Messages and facts say the same thing in two forms."""

from __future__ import annotations

import pytest

from looseleaf.devices.description import GpuDescription
from looseleaf.errors import InvalidArgument
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler import conversion
from looseleaf.services.scheduler.core.facts import (
    EndedHolder,
    ExecutionState,
    Figures,
    Hold,
    Lease,
    Need,
    StartPath,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.views import HostView, PoolView
from looseleaf.v1 import recipe_pb2, scheduler_pb2, types_pb2


@pytest.mark.parametrize(("ours", "wire", "prefix"), [
    (StartPath, types_pb2.StartPath, "START_PATH_"),
    (ExecutionState, scheduler_pb2.ExecutionState, "EXECUTION_STATE_"),
    (WorkerStage, scheduler_pb2.WorkerStage, "WORKER_STAGE_"),
])
def test_enums_carry_the_numbers_of_the_wire(ours: type, wire: object, prefix: str) -> None:
    assert {prefix + member.name: member.value for member in ours} == dict(wire.items())  # type: ignore[attr-defined]


def test_lease_survives_the_round_trip() -> None:
    lease = Lease(
        LeaseId("l1"), SessionId("s1"), Epoch(3), ExecutionId("x1"), HostId("h0"), "unix:/h0", (1, 2), WorkerId("w1"),
        StartPath.WARM, 10_000, worker_required=True)
    assert conversion.lease_facts(conversion.lease_message(lease)) == lease


@pytest.mark.parametrize("hold", [None, Hold(("f", "it"), 42.5, Epoch(3))])
def test_worker_survives_the_round_trip(hold: Hold | None) -> None:
    worker = WorkerReport(
        WorkerId("w1"), SessionId("s1"), WorkerStage.COMPLETED, Version(4), "h", (1, 2), ExecutionId("x1"), 7, 8, hold)
    assert conversion.worker_facts(conversion.worker_message(worker)) == worker


def test_heartbeat_tells_which_workers_ended_with_unsaved_variables() -> None:
    request = scheduler_pb2.HeartbeatRequest(
        host=types_pb2.HostAddress(host_id="h0", address="unix:/h0"), incarnation="i1",
        ended_holders=[scheduler_pb2.EndedHolder(worker_id="w1", why="exited", ended_s_ago=1.5)])
    assert conversion.host_report(request).ended_holders == (EndedHolder(WorkerId("w1"), "exited", 1.5),)


def test_what_placement_needs_of_memory_comes_with_recipes_and_heartbeats() -> None:
    recipe = recipe_pb2.ExecutionRecipe(gpu_count=2, device_bytes=9, peak_bytes=31)
    facts = conversion.recipe_facts(recipe)
    assert (facts.gpu_bytes, facts.gpu_peak_bytes) == (5, 16)
    request = scheduler_pb2.HeartbeatRequest(
        host=types_pb2.HostAddress(host_id="h0", address="unix:/h0"), incarnation="i1", gpu_used_bytes=[7, 8])
    assert conversion.host_report(request).gpu_used_bytes == (7, 8)


def test_heartbeat_s_gpu_reaches_whoever_asks_for_the_pool() -> None:
    gpu = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132, "12.8", "570.1", 50 << 20, 2048, 232448)
    request = scheduler_pb2.HeartbeatRequest(
        host=types_pb2.HostAddress(host_id="h0", address="unix:/h0"), incarnation="i1",
        gpu=scheduler_pb2.GpuDescription(**gpu.message()))
    assert conversion.host_report(request).gpu == gpu
    host = HostView(HostId("h0"), "unix:/h0", 1, "cuda", 0.0, "alive", (), (), gpu)
    told = conversion.pool_message(PoolView((host,), 0, 0.0, ready=True)).hosts[0].gpu
    assert conversion.gpu_facts(told) == gpu


def test_run_names_the_worker_that_it_needs_and_for_what() -> None:
    assert conversion.need_facts(scheduler_pb2.RequestRunRequest()) == Need()
    request = scheduler_pb2.RequestRunRequest(needed_worker_id="w1", needed_names=["it"])
    assert conversion.need_facts(request) == Need(WorkerId("w1"), ("it",))


def test_figures_survive_the_round_trip() -> None:
    figures = Figures(1.0, 2.0, 3.0, 4.0, 5, 6, 7, 8.0, 9.0, 10.0)
    assert conversion.figures_facts(conversion.figures_message(figures)) == figures


def test_recipe_without_a_gpu_count_asks_for_one() -> None:
    facts = conversion.recipe_facts(recipe_pb2.ExecutionRecipe(names=["b", "a"]))
    assert (facts.gpu_count, facts.names) == (1, frozenset({"a", "b"}))


def test_absurd_gpu_count_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        conversion.recipe_facts(recipe_pb2.ExecutionRecipe(gpu_count=100_000))


def test_heartbeat_without_an_incarnation_is_refused() -> None:
    request = scheduler_pb2.HeartbeatRequest(host=types_pb2.HostAddress(host_id="h0", address="unix:/h0"))
    with pytest.raises(InvalidArgument) as raised:
        conversion.host_report(request)
    assert raised.value.reason == "HEARTBEAT_MALFORMED"


def test_lease_that_names_a_gpu_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument) as raised:
        conversion.lease_facts(types_pb2.Lease(lease_id="l1", gpu_indices=[0, 0]))
    assert raised.value.reason == "HEARTBEAT_MALFORMED"


def test_stage_of_a_newer_daemon_counts_as_busy() -> None:
    worker = scheduler_pb2.WorkerState(worker_id="w1")
    worker.stage = 77  # type: ignore[assignment]
    assert conversion.worker_facts(worker).stage.busy


def test_state_of_a_newer_daemon_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        conversion.reported_state(77)
