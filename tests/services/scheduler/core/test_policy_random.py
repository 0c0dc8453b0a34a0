"""The policy in many random worlds (`random_world.World`).

The claim: no GPU runs two cells; an execution starts at most once; an older epoch never gets a lease; a record is
durable before anything that rests on it; a worker that is kept for its variables makes way for nobody, and a cell that
needs them runs there or not at all; nobody waits for a GPU that could be had; once the faults end, everybody is served
in bounded time while runs of all sizes and both tenants go on to come. A failure prints the command that repeats its
world.
"""

from __future__ import annotations

import pytest

from tests.services.scheduler.core.random_world import World

# The 100,000 events of every test run go in pieces of so many, which can be run apart.
PIECE = 10_000


@pytest.mark.parametrize(("events", "first_seed"), [
    *((PIECE, 100 * piece) for piece in range(10)),
    pytest.param(10_000_000, 1_000_000, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(14_400)]),
])
def test_policy_keeps_its_promises_over_so_many_events_of_random_worlds(events: int, first_seed: int) -> None:
    handled, seed = 0, first_seed
    while handled < events:
        world = World(seed)
        world.run()
        handled += world.handled
        seed += 1


def test_failing_world_prints_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: World) -> None:
        raise AssertionError("two cells on one GPU")

    monkeypatch.setattr(World, "step", fail)
    with pytest.raises(AssertionError) as raised:
        World(7).run()
    assert str(raised.value) == (
        "seed 7: two cells on one GPU; repeat with `python -m tests.services.scheduler.core.random_world 7`")
