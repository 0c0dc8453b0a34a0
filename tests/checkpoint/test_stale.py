"""Values that no version has and that hold an older state of others are found, whatever keeps it, and named."""

from __future__ import annotations

from typing import Any

import pytest

OTHER = """
from looseleaf.checkpoint.tracker import StateTracker
tracker2 = StateTracker(other := {}, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
"""


def stale_after(process: Any, cell: str, names: list[str], change: str) -> Any:
    return process(f"""
cell({cell!r})
save()
{OTHER}
tracker2.restore({names!r})
exec({change!r}, other)
tracker2.save("x-other")
result = [name for name, _path in advance().stale]
""")


@pytest.mark.parametrize("mine", [
    "(n for n in data)",
    "made(data)",
    "started(data)",
    "[(n for n in data)]",
    "(n for n in box['data'])",
    "threading.Thread(target=data.append)",
    "threading.Thread(target=print, args=(data,))",
    "iter(torch.utils.data.DataLoader(data))",
])  # fmt: skip
def test_what_keeps_an_older_state_is_named(process: Any, mine: str) -> None:
    cell = f"""
import threading, torch
def made(values):
    for n in values: yield n
def started(values):
    found = made(values)
    next(found)
    return found
data = [1, 2, 3]
box = {{"data": data}}
mine = {mine}
apart = (n for n in [1, 2, 3])
"""
    assert stale_after(process, cell, ["data", "box"], "data.append(4)") == ["mine"]


def test_part_of_a_changed_value_that_nobody_else_names_is_found(process: Any) -> None:
    cell = "box = {'inner': [1]}\nmine = (n for n in box['inner'])\nfree = (n for n in 'abc')"
    assert stale_after(process, cell, ["box"], "box['inner'].append(2)") == ["mine"]


def test_unchanged_variables_that_changed_ones_refer_to_make_nothing_stale(process: Any) -> None:
    cell = "base = [[1], [2]]\nbox = {'base': base, 'count': [0]}\nmine = (n for n in base)"
    assert stale_after(process, cell, ["box"], "box['count'].append(1)") == []
