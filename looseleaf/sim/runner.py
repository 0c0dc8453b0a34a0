"""Runs one policy over several seeds."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from looseleaf.sim.model import Model
from looseleaf.sim.policies import make_policy
from looseleaf.sim.results import Result, SeedResult
from looseleaf.sim.workload import CellStream, DrawnCells
from looseleaf.sim.world import World


class MakeStreams(Protocol):
    """Gives the sessions' cells of one seed."""

    def __call__(self, model: Model, sessions: int, seed: int) -> Sequence[CellStream]:
        """One stream a session; what the source does not tell is drawn from `model`."""
        ...


def drawn_streams(model: Model, sessions: int, seed: int) -> Sequence[CellStream]:
    """Streams from the model's distributions."""
    return [DrawnCells(model.workload, model.mechanism, seed, index) for index in range(sessions)]


def simulate(
    model: Model, policy: str, sessions: int, seeds: Sequence[int], streams: MakeStreams | None = None,
) -> Result:
    """One policy at one number of sessions under each seed; `streams` None: from the model."""
    make = streams or drawn_streams
    return Result(
        policy, model.name, sessions, tuple(simulate_seed(model, policy, sessions, seed, make) for seed in seeds))


def simulate_seed(model: Model, policy: str, sessions: int, seed: int, streams: MakeStreams) -> SeedResult:
    """One world from beginning to end."""
    world = World(model, streams(model, sessions, seed), seed, lambda world: make_policy(policy, world))
    with _collector_paused():
        began_s = time.process_time()
        world.run()
        processor_s = time.process_time() - began_s
    gpu_seconds = world.ledger.gpu_seconds(world.end_s)
    provisioned = math.fsum(gpu_seconds.values()) / (world.end_s - world.warmup_s)
    whole = sum(session.stream.gpus for session in world.sessions)
    pinned = max(1, math.ceil(whole / model.hosts.gpus)) * model.hosts.gpus
    return SeedResult(
        seed, provisioned, pinned, gpu_seconds, sorted(world.starts_s), world.refusals, world.pool.boots,
        world.policy.decisions, world.policy.preparations(), processor_s, world.policy.late(),
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """What a simulation makes is freed by its counts; looking for cycles among it only takes time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        gc.collect()
