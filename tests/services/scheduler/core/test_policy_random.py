"""The policy in many random worlds (`random_world.World`).

The claim: no GPU runs two cells; an execution starts at most once; an older epoch never gets a lease; a record is
durable before anything that rests on it; a worker that is kept for its variables makes way for nobody, and a cell that
needs them runs there or not at all; once the faults end, everybody who still waits is served. A failing test names its
seed: `pytest tests/services/scheduler/core/test_policy_random.py -k '[<seed>]'`, or in code `World(seed).run()`.
"""

from __future__ import annotations

import pytest

from tests.services.scheduler.core.random_world import World


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("worlds", [200, pytest.param(1_000, marks=pytest.mark.soak)])
def test_policy_in_many_random_worlds_keeps_its_promises(worlds: int) -> None:
    for seed in range(1_000, 1_000 + worlds):
        try:
            World(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: repeat with World({seed}).run()") from error


@pytest.mark.parametrize("seed", range(30))
def test_policy_in_a_random_world_keeps_its_promises(seed: int) -> None:
    print(f"seed {seed}: repeat with World({seed}).run()")
    World(seed).run()
