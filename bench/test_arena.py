"""How little moves and how little memory it takes: bytes of a save beside its dirty regions, and processes that share.

Both are counted, not timed, and fail beyond their targets; the times beside them are of the same saves and restores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, publish
from pytest_benchmark.fixture import BenchmarkFixture
from state_process import VARIABLES, StateProcess

SIZE_MIB = 512
SMOKE_MIB = 64
ROUNDS = 7
# Design §11.
MOVED_TO_DIRTY_MAX = 1.02
SHARERS = 2
# What a process that only reads its state takes of its own beside the pages that it shares.
OWN_TO_STATE_MAX = 0.02


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("dirty", "fraction"), [("10 %", 0.1), ("100 %", 1.0)])
def test_bytes_moved_by_a_save(
    benchmark: BenchmarkFixture, storage_cluster: Any, tmp_path: Path, smoke: bool, dirty: str, fraction: float
) -> None:
    rounds, ratios = Rounds(), []
    with StateProcess(storage_cluster.kernel_socket(), tmp_path) as state:
        made = state.call("fill", SMOKE_MIB if smoke else SIZE_MIB)
        for _ in range(1 if smoke else ROUNDS):
            seen = state.call("save_counted", fraction)
            rounds.add("save", seen["staged"])
            ratios.append(seen["moved_bytes"] / seen["dirty_bytes"])
    worst = max(ratios)
    what = f"save {made['bytes'] >> 20} MiB, {dirty} dirty: moves {worst:.4f} × its dirty regions"
    publish(benchmark, rounds, "save", what, (None, None), moved_to_dirty=ratios, state_bytes=made["bytes"])
    assert worst <= MOVED_TO_DIRTY_MAX


@pytest.mark.timeout(600)
def test_memory_of_processes_that_share_a_session(
    benchmark: BenchmarkFixture, storage_cluster: Any, tmp_path: Path, smoke: bool
) -> None:
    rounds, endpoint = Rounds(), storage_cluster.kernel_socket()
    with StateProcess(endpoint, tmp_path) as saver:
        made = saver.call("fill", SMOKE_MIB if smoke else SIZE_MIB)
    size_bytes = made["bytes"]
    with StateProcess(endpoint, tmp_path, made["session"]) as one, StateProcess(
        endpoint, tmp_path, made["session"]
    ) as two:
        for _ in range(1 if smoke else ROUNDS):
            for state in (one, two):
                rounds.add("restore", state.call("restore", VARIABLES)["read"])
        seen = [state.call("arena_memory") for state in (one, two)]
    rss, pss, own = (sum(memory[key] for memory in seen) for key in ("Rss", "Pss", "Anonymous"))
    what = (
        f"restore of {size_bytes >> 20} MiB by {SHARERS} processes, all read: {rss / size_bytes:.2f} × its memory "
        f"mapped, {pss / size_bytes:.2f} × as their share (PSS), {own / size_bytes:.3f} × their own"
    )
    publish(benchmark, rounds, "restore", what, (None, None), memory=seen, state_bytes=size_bytes)
    assert rss >= SHARERS * size_bytes, "each has all of it mapped and read"
    # The daemon, which wrote the pages, may share them too: their part is then smaller still.
    assert pss <= size_bytes * (1 + OWN_TO_STATE_MAX)
    assert own <= size_bytes * OWN_TO_STATE_MAX
