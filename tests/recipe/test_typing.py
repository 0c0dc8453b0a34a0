"""While a cell is typed: nothing runs, nothing changes, and what is needed mostly grows."""

from __future__ import annotations

import itertools
import os
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.kernel.live_facts import LiveFacts
from looseleaf.recipe import CellRun, ExecutionLog, Recipe, derive_recipe

SESSION = """import torch, numpy as np
rate = 0.1
width = 3
data = [[1.0] * width]
def scale(x): return x * rate
class Net:
    def __init__(self): self.w = width
    def forward(self, x): return scale(x)
net = Net()
losses = []
unused = other = 1
"""
CELLS = [
    "for row in data:\n    y = net.forward(row)\n    losses.append(sum(y))\nprint(f'{losses[-1]:.3f} {rate}')",
    "def step(n):\n    return [scale(v) for v in data[n]]\n\nresult = step(0)\nprint(np.mean(result))",
    "try:\n    with open('a') as f:\n        losses = [float(line) for line in f]\nexcept OSError:\n    print(width)",
    "%%time\nx = torch.tensor(data)\nif rate > 0.5:\n    x = x * rate\nelse:\n    x = scale(x)\nx.sum()",
    "total = {\n    'a': scale(data[0][0]),\n    'b': (rate +\n          width),\n}\nnet.w = total['b']",
]


class Watched:
    """Notes each use of it that would run a person's code."""

    def __init__(self) -> None:
        object.__setattr__(self, "uses", [])

    def __getattr__(self, name: str) -> Any:
        object.__getattribute__(self, "uses").append(name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "uses").append(f"set {name}")

    def _use(self, *_args: Any) -> Any:
        object.__getattribute__(self, "uses").append("operator")
        return self

    __call__ = __add__ = __iter__ = __getitem__ = __repr__ = __str__ = __len__ = __bool__ = __eq__ = _use  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def versions(text: str, ends: list[int]) -> list[Recipe]:
    """The recipes of `text` typed up to each of `ends`."""
    log = ExecutionLog()
    log.record(CellRun(1, "s", SESSION, ok=True))
    return [
        derive_recipe(text[:end], cell_id="c", log=log, headers=None, version=i, editing=True)
        for i, end in enumerate(ends, start=1)
    ]


def word_ends(text: str) -> list[int]:
    return [match.end() for match in re.finditer(r"\w+|[^\w\s]", text)]


@pytest.mark.parametrize("text", CELLS)
def test_typed_names_are_those_of_the_whole_cell_and_mostly_grow(text: str) -> None:
    found = versions(text, word_ends(text))
    whole = set(found[-1].names)
    grown = [set(b.names) >= set(a.names) for a, b in itertools.pairwise(found)]
    assert sum(grown) >= 0.9 * len(grown)
    wanted = sum(len(set(r.names) & whole) for r in found)
    # A name that is typed before its `=` counts as read for one version.
    assert wanted + 1 >= 0.9 * sum(len(r.names) for r in found)
    assert all(r.confidence <= 0.5 for r in found if r.partial)


@pytest.mark.parametrize("text", CELLS)
def test_typed_cell_is_exact_at_run_whatever_was_typed_before(text: str) -> None:
    typed = versions(text, [*word_ends(text), len(text)])[-1]
    fresh = versions(text, [len(text)])[-1]
    assert (typed.names, typed.label, typed.reason) == (fresh.names, fresh.label, fresh.reason)
    assert "unused" not in typed.names


@settings(max_examples=60)
@given(st.text(alphabet="watcheds.()[]=+'\n %!{}:,1", max_size=40))
def test_edit_uses_no_object_and_changes_nothing(text: str) -> None:
    watched = Watched()
    namespace: dict[str, Any] = {"watched": watched, "a": [watched], "d": {"k": watched}, "t": 1}
    before = dict(namespace)
    outside = (dict(os.environ), os.getcwd(), random.getstate())
    log = ExecutionLog()
    log.record(CellRun(1, "s", "watched = a = d = t = make()", ok=True))
    headers = LiveFacts(namespace, lambda name: name.startswith("_"), None, {})
    for source in (text, f"{text}\nwatched.run(a[0] + d['k'])", f"eval({text!r})\n!touch x\nt"):
        derive_recipe(source, cell_id="c", log=log, headers=headers, version=1, editing=True)
    assert object.__getattribute__(watched, "uses") == []
    assert namespace.keys() == before.keys() and all(namespace[k] is before[k] for k in before)
    assert (dict(os.environ), os.getcwd(), random.getstate()) == outside
