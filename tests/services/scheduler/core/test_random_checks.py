"""The random worlds find faults: where the policy is spoiled, some world soon says which promise it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from looseleaf.services.scheduler.core import admission, demoting, granting, policy, prepared, preparing, rooms
from looseleaf.services.scheduler.core.events import WorkerPrepared
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.host_table import HostTable
from looseleaf.services.scheduler.core.leases import LeaseTable
from looseleaf.services.scheduler.core.queue import RunQueue
from looseleaf.services.scheduler.core.speculation import Speculation
from looseleaf.services.scheduler.core.state import State
from tests.services.scheduler.core.random_world import World

# Worlds, about 1,200 events each, in the first of which most faults show, each in one of them.
FIRST_SEED, WORLDS = 14, 12

Patch = Callable[[Any, str, Any], None]


def _accept_old_epochs(patch: Patch) -> None:
    for module in (admission, preparing):
        patch(module, "see_epoch", lambda *_: True)


def _lease_for_free(patch: Patch) -> None:
    patch(LeaseTable, "session_runs", lambda *_: False)


def _grant_before_the_record(patch: Patch) -> None:
    write = State.write
    patch(State, "write", lambda state, record: None if record is not None and record.state is (
        ExecutionState.DISPATCHED) else write(state, record))


def _forget_to_tell_of_a_worker(patch: Patch) -> None:
    touch = HostTable.touch
    patch(HostTable, "touch", lambda hosts, host_id, worker=None: None if worker else touch(hosts, host_id))


def _end_whom_nobody_may_end(patch: Patch) -> None:
    patch(rooms, "evictable", lambda *_: True)


def _lose_a_run(patch: Patch) -> None:
    remove = RunQueue.remove
    removed: Iterator[int] = iter(range(1_000_000))

    def lose(queue: RunQueue, execution_id: Any) -> None:
        remove(queue, execution_id)
        if next(removed) % 50 == 49 and len(queue):
            remove(queue, next(iter(queue)).execution_id)

    patch(RunQueue, "remove", lose)


def _serve_the_last_first(patch: Patch) -> None:
    in_turn = granting.in_turn
    patch(granting, "in_turn", lambda *given: iter(list(in_turn(*given))[::-1]))


def _keep_a_gpu(patch: Patch) -> None:
    remove = LeaseTable.remove

    def keep(leases: LeaseTable, lease_id: Any) -> Any:
        entry = remove(leases, lease_id)
        if leases.on_host(entry.lease.host_id):
            leases._taken[entry.lease.host_id].update(entry.lease.gpu_indices)
        return entry

    patch(LeaseTable, "remove", keep)


def _forget_whom_another_worker_replaced(patch: Patch) -> None:
    """What `worker_prepared` changes of a worker that is not the one that is ready now stays unsaid."""
    touch, ready = HostTable.touch, prepared.worker_prepared

    def prepare(state: State, event: Any, now_s: float) -> None:
        def forget(hosts: HostTable, host_id: Any, worker: Any = None) -> None:
            if worker is None or worker.worker_id == event.worker_id:
                touch(hosts, host_id, worker)

        with pytest.MonkeyPatch.context() as within:
            within.setattr(HostTable, "touch", forget)
            ready(state, event, now_s)

    patch(policy, "BY_EVENT", {**policy.BY_EVENT, WorkerPrepared: prepare})


def _forget_what_a_tick_changes(patch: Patch) -> None:
    demote = demoting.demote

    def forget(state: State, *given: Any) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(HostTable, "touch", lambda *_: None)
            demote(state, *given)

    patch(demoting, "demote", forget)


def _count_a_context_for_ever(patch: Patch) -> None:
    patch(Speculation, "close_context", lambda *_, **__: None)


def _count_a_heartbeat_as_a_keystroke(patch: Patch) -> None:
    open_context = Speculation.open_context
    patch(Speculation, "open_context", lambda self, worker, host_id, tenant, now_s, _typed_s=None: open_context(
        self, worker, host_id, tenant, now_s))


@pytest.mark.parametrize(("spoil", "promise"), [
    (_accept_old_epochs, "older epoch|newest epoch|fenced"),
    (_lease_for_free, "two valid leases"),
    (_grant_before_the_record, "granted before journaled|without a lease"),
    (_forget_to_tell_of_a_worker, "not told of|leads elsewhere"),
    (_end_whom_nobody_may_end, "a holder goes too early|under a cell|never served"),
    (_lose_a_run, "waits for|never served|executions without an end|is out without"),
    (_serve_the_last_first, "waits for"),
    (_keep_a_gpu, "counts as taken"),
    (_forget_whom_another_worker_replaced, "not told of|leads elsewhere"),
    (_forget_what_a_tick_changes, "not told of|leads elsewhere"),
    (_count_a_context_for_ever, "a context is counted"),
    (_count_a_heartbeat_as_a_keystroke, "contexts are miscounted"),
])
def test_fault_in_the_policy_is_found(
    spoil: Callable[[Patch], None], promise: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch.setattr)
    with pytest.raises(AssertionError, match=rf"^seed \d+: .*({promise})(.|\n)*; repeat with `python -m"):
        _live_through(range(FIRST_SEED, FIRST_SEED + WORLDS))


def _live_through(seeds: range) -> None:
    for seed in seeds:
        World(seed).run()
