"""What a worker tells of variables that no version has, and what lives on in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MakeWorker = Callable[..., Any]


def rows(worker: Any) -> dict[str, tuple[bool, bool]]:
    return {row["name"]: (row["here"], row["alive"]) for row in worker.saved["unsaved"]}


def test_live_iterator_outlives_the_preparation_for_newer_versions(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.run("data = [1, 2]\nnumbers = (n for n in range(9))\nnext(numbers)")
    other = make_worker(worker.store, prepare=False)
    other.prepare(["data"])
    other.run("data.append(3)\nfresh = 1")
    assert rows(other) == {"numbers": (False, False)}
    report = worker.prepare(["data", "numbers"], needed=["numbers"])
    assert report["not_live"] == []
    worker.run("print(next(numbers), data, end='')", 2)
    assert worker.text() == "1 [1, 2, 3]"
    assert rows(worker) == {"numbers": (True, True)}


def test_value_that_was_bound_anew_elsewhere_does_not_live_here_any_more(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.run("numbers = (n for n in range(9))")
    other = make_worker(worker.store, prepare=False)
    other.prepare([])
    other.run("numbers = (n for n in 'abc')")
    assert worker.prepare(["numbers"], needed=["numbers", "unheard_of"])["not_live"] == ["numbers", "unheard_of"]


@pytest.mark.parametrize(("cell", "alive"), [
    ("x = open('/dev/null')", True),
    ("x = open('/dev/null')\nx.close()", False),
    ("with open('/dev/null', 'rb') as x: pass", False),
    ("x = (n for n in range(3))", True),
    ("x = (n for n in range(3))\nlist(x)", False),
    ("async def work(): pass\nx = work()", True),
    ("x = [open('/dev/null')]", True),
])  # fmt: skip
def test_worker_is_kept_only_for_what_somebody_can_use(make_worker: MakeWorker, cell: str, alive: bool) -> None:
    worker = make_worker()
    worker.run(cell)
    assert rows(worker) == {"x": (True, alive)}


def test_older_state_that_lives_on_here_is_told_once_in_the_next_cell(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.run("data = [1, 2]\nnumbers = (n for n in data)\nnext(numbers)")
    other = make_worker(worker.store, prepare=False)
    other.prepare(["data"])
    other.run("data.append(3)")
    worker.prepare(["data", "numbers"])
    worker.run("print(data, end='')", 2)
    assert worker.text() == "[1, 2, 3]"
    told = worker.text("stderr")
    assert told.count("'numbers' cannot be saved and still holds") == 1
    worker.run("data", 3)
    assert worker.text("stderr") == ""
