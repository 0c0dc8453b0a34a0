"""Random graphs of objects for properties of save and restore: how they are made, changed and compared."""

# Cells stay in the form in which a person would write them.

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_nursery import MemoryIO
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same_graph import assert_same_graph

from looseleaf.checkpoint.process_state import ProcessState
from looseleaf.checkpoint.tracker import StateTracker

__all__ = ["FEWER", "HOW_MANY", "Names", "assert_same_graph", "containers", "graphs", "hold", "make_tracker", "mutate"]

KINDS = [
    "list", "dict", "tuple", "object", "array", "view", "tensor", "tensor_view", "set", "bytes", "deque", "slots",
    "objects", "closure",
]  # fmt: skip


class Slotted:
    __slots__ = ("left", "right")


def make_tracker(namespace: dict[str, Any], io: MemoryIO, *, is_kernel: bool = False) -> StateTracker:
    tracker = StateTracker(
        namespace, io, session_id="s", epoch=1, hidden=lambda name: name.startswith("__"), is_kernel=is_kernel
    )
    # The state of the test process itself is none of these tests' business.
    tracker.process = _NoProcess()
    return tracker


class _NoProcess(ProcessState):
    def read(self, last, patches):
        return {"patches": {}, "warnings": []}, []

    def apply(self, record, *, before_objects):
        return []


class Names(dict[str, Any]):
    """A namespace whose text, which hypothesis wants of every failure, stays short."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: {str(value)[:200]}" for name, value in self.items()) + "}"


@st.composite
def graphs(draw):
    """A namespace of objects of all kinds that refer to each other at random, cycles included."""
    nodes: list[Any] = []
    for index in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(KINDS))
        earlier = [nodes[i] for i in draw(st.lists(st.integers(0, max(0, index - 1)), max_size=3)) if nodes]
        nodes.append(_make(kind, earlier, index, draw(st.booleans())))
    for _ in range(draw(st.integers(0, 14))):
        source, target = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        _link(source, target, draw(st.integers(0, 3)))
    names = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=6))
    return Names({f"v{i}": node for i, node in enumerate(names)})


def _make(kind: str, earlier: list[Any], index: int, big: bool) -> Any:
    size = 9000 if big else 7
    arrays = [e for e in earlier if isinstance(e, np.ndarray) and e.dtype != object]
    tensors = [e for e in earlier if isinstance(e, torch.Tensor)]
    if kind == "view" and arrays:
        return arrays[0][1 : 1 + len(arrays[0]) // 2][::-1]
    if kind == "tensor_view" and tensors:
        return tensors[0][len(tensors[0]) // 3 :]
    if kind == "tensor_view" and arrays and arrays[0].strides[0] > 0:
        return torch.from_numpy(arrays[0])
    if kind in ("array", "view"):
        return np.arange(size, dtype=np.float64) + index
    if kind in ("tensor", "tensor_view"):
        return torch.arange(size, dtype=torch.float64) + index
    if kind == "tuple":
        return (index, *earlier)
    if kind == "deque":
        return deque([index, *earlier])
    if kind == "slots":
        made = Slotted()
        made.left = earlier
        return made
    if kind == "objects":
        found = np.empty(4, dtype=object)
        found[: len(earlier)] = [None] * len(earlier)
        for place, one in enumerate(earlier):
            found[place] = one
        return found
    if kind == "closure":
        return lambda: earlier
    if kind == "object":
        return types.SimpleNamespace(index=index, kept=earlier)
    if kind == "dict":
        return {"index": index, **{f"e{i}": e for i, e in enumerate(earlier)}}
    if kind == "set":
        return {index, "text", *tensors}
    return bytes([index]) * (5 if not big else 2 << 20) if kind == "bytes" else [index, *earlier]


def _link(source: Any, target: Any, key: int) -> None:
    if isinstance(source, (list, deque)):
        source.append(target)
    elif isinstance(source, Slotted):
        source.right = target
    elif isinstance(source, np.ndarray) and source.dtype == object:
        source[key] = target
    elif isinstance(source, types.FunctionType):
        _link(source(), target, key)
    elif isinstance(source, dict):
        source[f"k{key}"] = target
    elif isinstance(source, types.SimpleNamespace):
        setattr(source, f"a{key}", target)


# `make test` tries the first number of graphs, `make soak` the last; of the longer properties `make test` tries fewer.
SOAK = pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(4 * 3600)])
HOW_MANY = [100, SOAK]
FEWER = [40, SOAK]


def hold(property_: Callable[..., None], *strategies: Any, examples: int) -> None:
    """Tries the property on so many examples."""
    health = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings(max_examples=examples, suppress_health_check=health)(given(*strategies)(property_))()


def containers(values: list[Any]) -> list[Any]:
    """Mutable things that `values` reach, in an order that depends on the graph's shape only."""
    seen: dict[int, Any] = {}
    todo = list(reversed(values))
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        if isinstance(value, Slotted):
            seen[id(value)] = value
            todo.extend(getattr(value, name, None) for name in reversed(Slotted.__slots__))
        elif isinstance(value, types.FunctionType):
            todo.append(value())
        elif isinstance(value, np.ndarray) and value.dtype == object:
            seen[id(value)] = value
            todo.extend(reversed(value.tolist()))
        elif isinstance(value, (list, dict, types.SimpleNamespace, tuple, deque)):
            seen[id(value)] = value
            inner = vars(value) if isinstance(value, types.SimpleNamespace) else value
            todo.extend(reversed(list(inner.values() if isinstance(inner, dict) else inner)))
        elif isinstance(value, (np.ndarray, torch.Tensor)):
            seen[id(value)] = value
    return [value for value in seen.values() if not isinstance(value, tuple)]


def mutate(value: Any, number: int, share: Any) -> None:
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype != object):
        if len(value):
            value[number % len(value)] = number
    else:
        _link(value, share if number % 3 == 0 else number, number % 4)
