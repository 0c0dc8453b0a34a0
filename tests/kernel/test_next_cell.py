"""Which cells are likely to be run next, and when they are prepared for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from looseleaf.kernel.next_cell import (
    CELLS_AHEAD,
    CELLS_REMEMBERED_MAX,
    NOTEBOOK_BYTES_MAX,
    NextCell,
    RunOrder,
    cells_behind,
    read_notebook,
)
from looseleaf.kernel.predictions import Predictions


def code(cell_id: str, source: str | list[str], **metadata: Any) -> dict[str, Any]:
    return {"cell_type": "code", "id": cell_id, "source": source, "metadata": metadata}


def notebook(*cells: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": metadata}


FIRST = NextCell("a", "x = 1")


def test_cells_behind_are_the_next_ones_with_text_that_are_not_private() -> None:
    found = cells_behind(
        notebook(
            code("a", "x = 1"), {"cell_type": "markdown", "id": "m", "source": "words"}, code("b", "  \n"),
            code("c", "secret", tags=["looseleaf-private"]), code("d", "secret", looseleaf={"private": True}),
            code("e", ["y\n", "z"], looseleaf={"device": "gpu"}), *[code(f"n{n}", f"v{n}") for n in range(9)],
        ),
        FIRST,
    )  # fmt: skip
    assert found[:2] == [NextCell("e", "y\nz", "gpu"), NextCell("n0", "v0")]
    assert len(found) == CELLS_AHEAD


def test_cell_without_a_known_id_is_found_by_its_text_if_that_is_its_alone() -> None:
    saved = notebook(code("p", "x = 1\n"), code("q", "y"), code("r", "twice"), code("s", "twice"), code("t", "z"))
    assert cells_behind(saved, NextCell("elsewhere", "x = 1"))[0].cell_id == "q"
    assert cells_behind(saved, NextCell("", "twice")) == []
    assert cells_behind(saved, NextCell("", "gone")) == []


@pytest.mark.parametrize(
    "odd",
    [{}, {"cells": 3}, {"cells": [3, {"cell_type": "code"}, code("a", "x = 1")]}, notebook(code("a", "x"), {"id": 1}),
     notebook(code("a", "x"), code("b", "y"), looseleaf={"private": True}),
     {"cells": [code("a", "x"), {**code("b", "y"), "metadata": None, "source": 5}]}],
)  # fmt: skip
def test_private_or_odd_notebooks_have_no_next_cell(odd: dict[str, Any]) -> None:
    assert cells_behind(odd, FIRST) == []


def test_notebooks_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    assert read_notebook(str(path)) is None
    for text in ("[]", "{", "[" * 100_000):
        path.write_text(text)
        assert read_notebook(str(path)) is None
    path.write_text("{}")
    assert read_notebook(str(path)) == {}
    with path.open("r+") as file:
        file.truncate(NOTEBOOK_BYTES_MAX + 1)
    assert read_notebook(str(path)) is None
    assert read_notebook("a notebook in /tmp") is None


def test_order_of_earlier_runs_tells_what_came_after() -> None:
    order = RunOrder()
    for cell_id in ("a", "b", "a", "c", "c", ""):
        order.ran(NextCell(cell_id, f"text of {cell_id}"))
    assert order.after("a") == [NextCell("c", "text of c")]
    assert order.after("b") == [NextCell("a", "text of a")]
    assert order.after("c") == order.after("") == order.after("z") == []
    for number in range(2 * CELLS_REMEMBERED_MAX):
        order.ran(NextCell(str(number), ""))
    assert order.after("a") == [] and order.after("1998") != []


class Guesses:
    """Predictions whose preparations are noted; `labels` of cells by their text."""

    def __init__(self, path: str, labels: Mapping[str, str]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.told = False
        self._labels = labels
        loop = asyncio.get_running_loop()
        self.predictions = Predictions(self._prepare, lambda: loop, lambda: self.told, lambda: path, pause_s=0.0)

    async def _prepare(self, content: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((content["source"], content["device_override"]))
        return {"status": "ok", "recipe": {"label": self._labels.get(content["source"], "cpu")}}

    async def end(self, cell: NextCell, *, ok: bool = True, arrives: bool = False) -> list[tuple[str, str]]:
        """What is prepared for behind this cell."""
        self.asked.clear()
        self.predictions.cell_arrived()
        self.predictions.cell_ended(cell.cell_id, cell.source, ok=ok)
        if arrives:
            self.predictions.cell_arrived()
        # The timer and the task that it begins, each one turn of the loop; then what that waits for.
        for _ in range(10):
            await asyncio.sleep(0)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others)
        return list(self.asked)


def test_next_cells_are_prepared_until_one_needs_a_gpu_unless_somebody_tells(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    cells = [code("a", "x = 1"), code("b", "y"), code("c", "gpu", looseleaf={"device": "gpu"}), code("d", "z")]
    path.write_text(json.dumps(notebook(*cells)))

    async def main() -> None:
        guesses = Guesses(str(path), {"gpu": "gpu"})
        assert await guesses.end(FIRST) == [("y", ""), ("gpu", "gpu")]
        assert await guesses.end(FIRST, ok=False) == []
        assert await guesses.end(FIRST, arrives=True) == []
        guesses.told = True
        assert await guesses.end(FIRST) == []

    asyncio.run(main())


def test_private_cell_is_not_guessed_from_the_order_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook(code("a", "x = 1"), code("b", "y", tags=["looseleaf-private"]))))

    async def main() -> None:
        guesses = Guesses(str(path), {})
        for cell in (FIRST, NextCell("b", "y"), FIRST):
            assert await guesses.end(cell) == []

    asyncio.run(main())


def test_without_a_file_the_cell_that_came_after_last_time_is_prepared() -> None:
    async def main() -> None:
        guesses = Guesses("", {})
        second = NextCell("b", "y")
        assert await guesses.end(FIRST) == await guesses.end(second) == []
        assert await guesses.end(FIRST) == [("y", "")]

    asyncio.run(main())
