"""Values that no version has and that hold an older state of others are found, whatever keeps it, and named."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.checkpoint.stale import find_stale
from looseleaf.checkpoint.walk import Graph

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


def test_work_grows_no_faster_than_what_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    predecessors = Graph.predecessors

    def counted(graph: Graph, node: int) -> list[int]:
        looked_at.append(node)
        return predecessors(graph, node)

    monkeypatch.setattr(Graph, "predecessors", counted)
    parts = [[number] for number in range(2000)]
    dropped = [[part] for part in parts]
    chain: list[object] = []
    for part in parts:
        chain = [chain, part]
    kept = [("mine", chain), *((f"free_{number}", [[number]]) for number in range(100))]
    found = find_stale({}, kept, {id(value): value for value in dropped}, [])
    assert [name for name, _path in found] == ["mine"]
    # Each of some 6000 objects once on the way up to what dropped ones share, and once to who holds that.
    assert len(looked_at) < 3 * 6000


def test_unchanged_value_between_a_dropped_one_and_a_part_keeps_the_part_from_being_stale() -> None:
    inner = [1]
    stored = [inner]
    dropped = [stored]
    assert find_stale({}, [("mine", [inner])], {id(dropped): dropped}, [stored]) == []
    assert [name for name, _ in find_stale({}, [("mine", [inner])], {id(dropped): dropped}, [])] == ["mine"]
    assert find_stale({}, [("mine", [[dropped]])], {id(dropped): dropped}, [])[0][1] == "mine[0][0]"


def test_stand_in_of_a_deleted_value_is_told_once_and_makes_no_version_by_itself(process: Any) -> None:
    result = process("""
from looseleaf.checkpoint.stub import Stub
cell("x = [1]")
tracker.namespace["y"] = Stub("x", 1_000_000, None, None)
first, second, third = save(), save(), save()
try:
    cell("y.count")
    why = ""
except Exception as error:
    why = error.message
result = [[[u.name, u.reason] for u in report.unsaved] for report in (first, third)]
result += [second.nothing_changed, third.version == first.version, why]
""")
    assert result[:4] == [[["y", "STALE_STUB"]]] * 2 + [True, True]
    assert "deleted from the session" in result[4]
