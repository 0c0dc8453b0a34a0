"""The walk that finds what variables share, beside the plain pickle of the same objects (design §11)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from alternating import Rounds, Target, alternate, publish, timed_s, timing
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.checkpoint.edges import Edges
from looseleaf.checkpoint.walk import Graph

ELEMENTS = 1_000_000
SMOKE_ELEMENTS = 1_000
ROUNDS = 7
KINDS = ("list of integers", "dict of texts", "list of dicts")
# For a million elements of lists and dicts; small objects of their own cost more.
TARGETS = {kind: Target("time_s", 0.030, "<= 30 ms") for kind in KINDS[:2]}


def walk(value: Any) -> None:
    edges = Edges(
        (), on_array=lambda _: [], on_tensor=lambda _: [], on_storage=lambda _: [], on_arrow=lambda _: [],
        on_bytes=lambda _: None,
    )  # fmt: skip
    graph = Graph(edges, ())
    graph.add_root("value", value)
    graph.find_heads()


@pytest.fixture(scope="module")
def rounds(smoke: bool) -> Rounds:
    count = SMOKE_ELEMENTS if smoke else ELEMENTS
    values: dict[str, Any] = {
        "list of integers": list(range(count)),
        "dict of texts": {str(number): number for number in range(count)},
        "list of dicts": [{"a": number, "b": str(number)} for number in range(count // 3)],
    }
    tasks: dict[str, Any] = {kind: timing(walk, value) for kind, value in values.items()}
    tasks["pickle"] = lambda: {kind: timed_s(pickle.dumps, value, 5) for kind, value in values.items()}
    return alternate(tasks, rounds=1 if smoke else ROUNDS)


@pytest.mark.parametrize("kind", KINDS)
def test_walk_over_a_million_objects(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    publish(benchmark, rounds, kind, f"walk over a {kind}", (f"pickle/{kind}", TARGETS.get(kind)))
