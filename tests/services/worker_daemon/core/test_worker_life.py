from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import SessionId, WorkerId
from looseleaf.services.worker_daemon.core.worker_life import BUSY, KeepRules, Stage, WorkerFacts, WorkerRoster
from looseleaf.v1 import scheduler_pb2

workers = st.builds(
    WorkerFacts,
    worker_id=st.integers(0, 30).map(lambda number: WorkerId(f"w-{number}")),
    pid=st.just(1),
    session_id=st.sampled_from(["s-1", "s-2"]).map(SessionId),
    stage=st.sampled_from(Stage),
    gpus=st.sampled_from([(), (0,), (1,), (0, 1)]),
    idle_since_s=st.floats(0, 100),
    users=st.integers(0, 2),
)
rosters = st.lists(workers, unique_by=lambda worker: worker.worker_id, max_size=8).map(
    lambda found: WorkerRoster(KeepRules(30.0, 4), {worker.worker_id: worker for worker in found})
)


@given(rosters, st.floats(0, 200))
def test_nobody_in_use_ever_goes(roster: WorkerRoster, now_s: float) -> None:
    for worker in roster.expired(now_s):
        assert worker.users == 0 and worker.stage not in BUSY and now_s - worker.idle_since_s >= 30.0
    victim = roster.to_make_room(now_s)
    if victim is not None:
        assert victim.stage is Stage.GONE or (victim.users == 0 and victim.stage not in BUSY)


@given(rosters, st.floats(0, 200))
def test_nobody_goes_while_it_is_kept_for_variables_that_no_version_has(roster: WorkerRoster, now_s: float) -> None:
    for worker in roster.workers.values():
        worker.hold({"it", "closed"}, {"it"}, now_s + 0.1)
    assert roster.expired(now_s) == []
    victim = roster.to_make_room(now_s)
    assert victim is None or victim.stage is Stage.GONE
    before = roster.expired(now_s + 0.1)
    for worker in roster.workers.values():
        worker.release({"it"})
        assert worker.unsaved == {"closed"} and not worker.held(now_s)
    assert roster.expired(now_s + 0.1) == before


def test_of_completed_workers_those_with_unsaved_variables_make_room_last() -> None:
    roster = WorkerRoster(KeepRules(30.0, 4))
    for number, (stage, kept) in enumerate([(Stage.COMPLETED, {"it"}), (Stage.COMPLETED, ()), (Stage.HOST_READY, ())]):
        name = WorkerId(f"w-{number}")
        roster.workers[name] = WorkerFacts(name, 1, stage=stage)
        roster.workers[name].hold(kept, kept, 5.0)
    gone = []
    while (victim := roster.to_make_room(5.0)) is not None:
        gone.append(victim.worker_id)
        del roster.workers[victim.worker_id]
    assert gone == ["w-1", "w-0", "w-2"]


@given(rosters)
def test_room_is_made_by_those_that_end_then_completed_then_longest_idle(roster: WorkerRoster) -> None:
    victim = roster.to_make_room(0.0)
    may_go = [w for w in roster.workers.values() if w.evictable or w.stage is Stage.GONE]
    assert (victim is None) == (not may_go)
    if victim is None:
        return
    for other in may_go:
        ranks = [(w.stage is not Stage.GONE, w.stage is not Stage.COMPLETED, w.idle_since_s) for w in (victim, other)]
        assert ranks[0] <= ranks[1]


@given(rosters, st.sets(st.integers(0, 1)))
def test_everybody_on_a_gpu_but_the_chosen_one_is_found(roster: WorkerRoster, gpus: set[int]) -> None:
    chosen = next(iter(roster.workers), None)
    found = {worker.worker_id for worker in roster.on_gpus(gpus, but=chosen)}
    assert found == {w.worker_id for w in roster.workers.values() if gpus & set(w.gpus) and w.worker_id != chosen}


def test_sessions_workers_come_newest_first() -> None:
    roster = WorkerRoster(KeepRules(1.0, 4))
    for number, session in enumerate(["s-1", "s-2", "s-1"]):
        name = WorkerId(f"w-{number}")
        roster.workers[name] = WorkerFacts(name, 1, SessionId(session))
    assert [worker.worker_id for worker in roster.of_session(SessionId("s-1"))] == ["w-2", "w-0"]


def test_stages_have_the_numbers_of_the_wire() -> None:
    assert {f"WORKER_STAGE_{stage.name}": int(stage) for stage in Stage} == {
        name: number for name, number in scheduler_pb2.WorkerStage.items() if number
    }
