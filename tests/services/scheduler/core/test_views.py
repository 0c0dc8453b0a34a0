from __future__ import annotations

from typing import Any

from looseleaf.services.scheduler.conversion import pool_message
from looseleaf.services.scheduler.core.facts import ExecutionState


def test_pool_view_lists_as_many_waiting_and_ended_runs_as_are_asked_for(rig: Any) -> None:
    rig.heartbeat(gpu_memory_bytes=5)
    for number in range(3):
        rig.finish(rig.lease(f"done{number}"), "w1")
    rig.lease("running")
    rig.now_s = 2.0
    rig.run("waits", "s2")
    rig.run("waits-too", "s3", priority="batch")
    rig.now_s = 5.0
    pool = rig.scheduler.pool(rig.now_s, queue_max=5, ended_max=2)
    assert [(run.execution_id, run.position, run.priority, run.waited_s) for run in pool.queue] == [
        ("waits", 1, "interactive", 3.0), ("waits-too", 2, "batch", 3.0)]
    assert pool.queue[0].reason == "1 GPU busy with another notebook."
    assert [record.execution_id for record in pool.ended] == ["done2", "done1"]
    message = pool_message(pool)
    assert [run.execution_id for run in message.queue] == ["waits", "waits-too"]
    assert [run.state for run in message.ended] == [ExecutionState.SAVED] * 2
    assert message.hosts[0].gpu_memory_bytes == 5


def test_pool_view_lists_no_runs_unless_asked(rig: Any) -> None:
    rig.heartbeat()
    rig.finish(rig.lease("done"))
    rig.lease("running")
    rig.run("waits", "s2")
    pool = rig.scheduler.pool(rig.now_s)
    assert (pool.queued_runs, pool.queue, pool.ended) == (1, (), ())
    assert len(rig.scheduler.pool(rig.now_s, 1, 1).queue) == 1
