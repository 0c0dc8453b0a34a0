"""Events that the simulator handles with the real policy, on one core: an event is a call of `handle` but no tick.

What is timed is the whole simulation: people, daemons and policy. In a smoke run few sessions show that it works.
"""

from __future__ import annotations

import pytest
from alternating import Rounds, Target, alternate, publish
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.sim.model import load_model
from looseleaf.sim.runner import simulate

SESSIONS = (72, 300)
EVENTS_PER_S = 20_000
TARGET = Target("time_s", 1.0 / EVENTS_PER_S, f"<= {1e6 / EVENTS_PER_S:.0f} µs, {EVENTS_PER_S:,} events/s")


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    model = load_model("w1").changed(hours=0.3 if smoke else 2.0)
    tasks = {
        f"{sessions} sessions": lambda sessions=sessions: 1.0 / simulate(
            model, "looseleaf", 8 if smoke else sessions, [1]).events_per_s
        for sessions in SESSIONS
    }  # fmt: skip
    return alternate(tasks, rounds=1 if smoke else 3, warmup_rounds=0 if smoke else 1)


@pytest.mark.parametrize("sessions", SESSIONS)
def test_event_of_the_simulator(benchmark: BenchmarkFixture, rounds: Rounds, sessions: int) -> None:
    kind = f"{sessions} sessions"
    publish(benchmark, rounds, kind, f"an event of a simulation of {kind}", (None, TARGET))
