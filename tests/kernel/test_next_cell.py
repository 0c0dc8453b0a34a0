"""Which cells are likely to be run next, and when they are prepared for."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from looseleaf.kernel.kernel import LooseLeafKernel
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
from looseleaf.kernel.preparations import Preparations
from looseleaf.kernel_config import KernelConfig


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
    # Front ends that know no ids send none, or an address.
    for cell_id in ("", "vscode-notebook-cell:/n/a.ipynb#W0"):
        assert cells_behind(saved, NextCell(cell_id, "x = 1"))[0].cell_id == "q"
        assert cells_behind(saved, NextCell(cell_id, "twice")) == []
        assert cells_behind(saved, NextCell(cell_id, "gone")) == []


def test_cell_with_an_id_that_the_file_does_not_have_is_not_looked_for_by_its_text() -> None:
    saved = notebook(code("p", "x = 1"), code("q", "y"))
    assert cells_behind(saved, FIRST) == []
    # Written before cells had ids: those that run have new ones.
    for cell in saved["cells"]:
        del cell["id"]
    assert cells_behind(saved, FIRST) == [NextCell("", "y")]


def test_private_tags_are_those_that_were_chosen() -> None:
    saved = notebook(code("a", "x = 1"), code("b", "y", tags=["secret"]), code("c", "z", tags=["looseleaf-private", 3]))
    assert [cell.cell_id for cell in cells_behind(saved, FIRST, ["secret"])] == ["c"]
    assert [cell.cell_id for cell in cells_behind(saved, FIRST)] == ["b"]


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

    def __init__(self, path: str, labels: Mapping[str, str], **config: Any) -> None:
        self.asked: list[tuple[str, str]] = []
        self._labels = labels
        self.preparations = Preparations(self._prepare, self._before)
        loop = asyncio.get_running_loop()
        self.predictions = Predictions(
            KernelConfig(**config), self.preparations, lambda: loop, lambda: path, pause_s=0.0
        )

    async def _before(self, _content: Mapping[str, Any]) -> None:
        return

    def _prepare(self, content: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((content["source"], content["device_override"]))
        return {"recipe": {"label": self._labels.get(content["source"], "cpu")}}

    async def end(
        self, cell: NextCell, *, ok: bool = True, before: Callable[[], None] | None = None
    ) -> list[tuple[str, str]]:
        """What is prepared for behind this cell; `before()` is called once it has ended."""
        self.asked.clear()
        self.predictions.cell_arrived()
        self.predictions.cell_ended(cell.cell_id, cell.source, ok=ok)
        if before is not None:
            before()
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
        assert await guesses.end(FIRST, before=guesses.predictions.cell_arrived) == []
        # Also one that may tell of none: people have forbidden it there.
        await guesses.preparations.answer({"kind": "idle"})
        assert await guesses.end(FIRST) == []

    asyncio.run(main())


def test_nothing_is_prepared_where_the_configuration_forbids_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook(code("a", "x = 1"), code("b", "y", tags=["secret"]), code("c", "z"))))

    async def main() -> None:
        off = KernelConfig.load({"LOOSELEAF_KERNEL_PREDICT": "false"}).predict
        assert await Guesses(str(path), {}, predict=off).end(FIRST) == []
        order = Guesses("", {}, predict=off)
        for cell in (FIRST, NextCell("b", "y"), FIRST):
            assert await order.end(cell) == []
        tags = KernelConfig.load({"LOOSELEAF_KERNEL_PRIVATE_TAGS": "hidden, secret"}).private_tags
        assert await Guesses(str(path), {}, private_tags=tags).end(FIRST) == [("z", "")]

    asyncio.run(main())


def test_kernel_that_ends_prepares_nothing_any_more(tmp_path: Path) -> None:
    class Ending:
        """As much of a kernel as its end needs; a cell is run by nobody."""

        _run = None

        def __init__(self, guesses: Guesses) -> None:
            self._predictions = guesses.predictions
            self._idle_commits = self.looseleaf = self
            self.cancel = self.close = lambda: None

    async def main() -> None:
        guesses = Guesses("", {})
        for cell in (FIRST, NextCell("b", "y"), FIRST):
            await guesses.end(cell)
        assert guesses.asked == [("y", "")]
        ends = functools.partial(LooseLeafKernel._close_session, Ending(guesses))
        assert await guesses.end(FIRST, before=ends) == []

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
