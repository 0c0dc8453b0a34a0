"""Simulated daemons do to workers what real ones do: nothing that a process cannot."""

from __future__ import annotations

import pytest

from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import Lease, StartPath, WorkerStage
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.opening import Opening
from looseleaf.sim.daemon import SimDaemon, SimWorker, serves, told_stage
from looseleaf.sim.model import Model
from looseleaf.sim.policies import make_policy
from looseleaf.sim.policies.looseleaf import LooseLeafPolicy
from looseleaf.sim.pool import SimHost
from looseleaf.sim.runner import drawn_streams
from looseleaf.sim.world import World

SESSIONS, SEED = 12, 3
GPUS = (1,)


def workers(held: str, *, has_run: bool) -> tuple[SimWorker, WorkerFacts]:
    """The same worker as the simulator and a daemon know it."""
    ours = SimWorker(WorkerId("w"), None, SessionId("s"))  # type: ignore[arg-type]
    theirs = WorkerFacts(WorkerId("w"), 1, SessionId("s"), execution_id=ExecutionId("x" * has_run))
    ours.has_run = has_run
    if held != "nothing":
        ours.gpus, ours.loaded = GPUS, "recipe" if held == "data" else ""
        theirs.open_ahead(GPUS, load=held == "data")
        theirs.opened_ahead(opened=True, now_s=1.0)
    return ours, theirs


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize(("stage", "gpus"), [
    (WorkerStage.HOST_READY, ()),
    *((stage, gpus) for stage in (WorkerStage.CONTEXT_READY, WorkerStage.DEVICE_READY) for gpus in (GPUS, (2,))),
])
@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("held", ["nothing", "context", "data"])
def test_preparation_goes_on_with_a_worker_where_a_real_daemon_would(
    held: str, has_run: bool, stage: WorkerStage, gpus: tuple[int, ...], leave: bool,
) -> None:
    ours, theirs = workers(held, has_run=has_run)
    assert serves(ours, stage, gpus, leave=leave) == Opening(Stage(int(stage)), gpus, leave=leave).serves(theirs)


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("held", ["nothing", "context", "data"])
def test_worker_is_as_far_after_a_preparation_in_host_memory_as_a_real_daemon_says(held: str, has_run: bool) -> None:
    ours, theirs = workers(held, has_run=has_run)
    assert told_stage(ours, WorkerStage.HOST_READY) == WorkerStage(int(theirs.prepared_stage))
    # A Run has come meanwhile.
    ours.gpus, ours.loaded, ours.leased = GPUS, "recipe", True
    theirs.bind(GPUS)
    assert told_stage(ours, WorkerStage.HOST_READY) == WorkerStage(int(theirs.prepared_stage)) == WorkerStage.HOST_READY


@pytest.mark.parametrize("opened", [(), GPUS, (0,)])
def test_cell_gets_another_worker_than_one_that_opened_other_gpus(short: Model, opened: tuple[int, ...]) -> None:
    world = World(short, drawn_streams(short, 1, SEED), SEED, lambda world: make_policy("looseleaf", world))
    daemon, (worker, _) = SimDaemon(world, SimHost(1, 8, 0)), workers("nothing", has_run=False)
    worker.gpus = opened
    daemon.add(worker)
    lease = Lease(
        LeaseId("l"), worker.session_id, Epoch(1), ExecutionId("x"), daemon.host_id, "", GPUS, worker.worker_id,
        StartPath.PREPARED, ttl_ms=1000)
    found = daemon.worker_for(lease)
    assert found is (worker if opened in ((), GPUS) else None)
    assert (worker.worker_id in daemon.workers) == (found is worker)


def test_worker_that_leaves_its_device_is_another_one_made_ready_anew(short: Model) -> None:
    model = short.changed(hours=0.7)
    world = World(
        model, drawn_streams(model, SESSIONS, SEED), SEED, lambda world: make_policy("looseleaf", world))
    policy = world.policy
    assert isinstance(policy, LooseLeafPolicy)
    plain = policy.core.handle
    orders: dict[str, act.PrepareWorker] = {}
    answers: list[tuple[ev.WorkerPrepared, act.PrepareWorker]] = []

    def noted(event: ev.Event, now_s: float) -> list[act.Action]:
        if isinstance(event, ev.WorkerPrepared) and event.request_id in orders:
            answers.append((event, orders[event.request_id]))
        actions = plain(event, now_s)
        orders.update(
            (action.request_id, action) for action in actions
            if isinstance(action, act.PrepareWorker) and action.leave_device)
        return actions

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy.core, "handle", noted)
        world.run()
    assert len(answers) > 5
    listed = {worker_id for daemon in policy._daemons.values() for worker_id in daemon.workers}
    for event, order in answers:
        assert event.worker_id != order.worker_id
        assert order.worker_id not in listed
        assert (event.stage, event.gpu_indices) == (WorkerStage.HOST_READY, ())
        assert event.prepare_ms > 0.0
