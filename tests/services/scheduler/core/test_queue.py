"""The order of runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.core.queue import Run, RunQueue, rank_s

PENALTY_S = 120.0


def run(number: int, arrived_at_s: float = 0.0, priority: str = "interactive") -> Run:
    return Run(
        ExecutionId(f"x{number}"), SessionId("s"), Epoch(1), RecipeFacts("h", Version(1)), priority, number,
        arrived_at_s, rank_s(arrived_at_s, priority, PENALTY_S))


@given(st.lists(st.tuples(st.floats(0, 1000), st.sampled_from(["interactive", "batch"])), max_size=30))
def test_queue_serves_by_arrival_with_batch_counting_as_later(arrivals: list[tuple[float, str]]) -> None:
    queue = RunQueue()
    for number, (arrived_at_s, priority) in enumerate(arrivals):
        queue.put(run(number, arrived_at_s, priority))
    served = [(queued.rank_s, queued.arrived_at) for queued in queue]
    assert served == sorted(served)
    assert len(queue) == len(arrivals)


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9)))
def test_queue_keeps_the_place_of_a_run_that_comes_back(numbers: list[int], taken: list[int]) -> None:
    queue = RunQueue()
    runs = {number: run(number) for number in numbers}
    for number in numbers:
        queue.put(runs[number])
    for number in taken:
        queue.remove(ExecutionId(f"x{number}"))
        if number in runs:
            assert f"x{number}" not in queue
            queue.put(runs[number])
    assert [queued.arrived_at for queued in queue] == sorted(numbers)


def test_queue_given_a_run_twice_is_a_fault_of_ours() -> None:
    queue = RunQueue()
    queue.put(run(1))
    with pytest.raises(AssertionError):
        queue.put(run(1))
