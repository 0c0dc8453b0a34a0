"""The comparer itself: it sees what a front end is told, and nothing else."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from golden_compare import compare
from golden_run import CellRun, NotebookRun
from PIL import Image


def notebook(*cells: CellRun, folder: str = "/w/one") -> NotebookRun:
    return NotebookRun(list(cells), Path(folder))


def cell(*messages: tuple[str, dict[str, Any]], number: int = 1, status: str = "ok", **reply: Any) -> CellRun:
    return CellRun("c", "x", number, {"status": status, **reply}, [], list(messages))


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def shown(text: str, kind: str = "display_data", display: str = "", **content: Any) -> tuple[str, dict[str, Any]]:
    transient = {"display_id": display} if display else {}
    return kind, {"data": {"text/plain": text}, "metadata": {}, "transient": transient, **content}


def error(line: int, pid: int) -> tuple[str, dict[str, Any]]:
    place = f"File /tmp/ipykernel_{pid}/12{pid}.py:{line}, in f()"
    lines = [f"\x1b[0;31mValueError\x1b[0m at 0x7f00deadbeef{pid}", place]
    return "error", {"ename": "ValueError", "evalue": "v", "traceback": lines}


def image(compression: int, color: str, kind: str = "PNG") -> tuple[str, dict[str, Any]]:
    data = io.BytesIO()
    Image.new("RGB", (4, 3), color).save(data, kind, compress_level=compression)
    return "display_data", {"data": {"image/png": base64.b64encode(data.getvalue()).decode()}, "metadata": {}}


def whats(one: CellRun, other: CellRun) -> list[str]:
    (found,) = compare(notebook(one), notebook(other))
    return [difference.what for difference in found.differences]


def test_compare_counts_rules_that_were_needed_and_only_those() -> None:
    (found,) = compare(notebook(cell(error(3, 11))), notebook(cell(error(3, 22))))
    assert (found.differences, sorted(found.rules)) == ((), ["address", "cell file"])
    (found,) = compare(notebook(cell(error(3, 11))), notebook(cell(error(3, 11))))
    assert (found.differences, found.rules) == ((), ())


def test_compare_split_streams_are_one_text() -> None:
    assert whats(cell(stream("a"), stream("b")), cell(stream("ab"))) == []


def test_compare_order_of_outputs_counts_but_that_of_stdout_and_stderr() -> None:
    one, other = cell(stream("a"), stream("b", "stderr")), cell(stream("b", "stderr"), stream("a"))
    assert whats(one, other) == []
    assert whats(cell(stream("a"), shown("d")), cell(shown("d"), stream("a")))
    assert whats(cell(stream("a")), cell(stream("b"))) == ["message 1 (streams), stdout"]


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (cell(error(3, 1)), cell(error(4, 1)), "message 1 (error), traceback"),
        (cell(), cell(number=2), "number of the run"),
        (cell(), cell(status="error"), "reply, status"),
        (cell(payload=[]), cell(payload=[{"source": "page", "data": {}}]), "reply, payload"),
        (cell(ename="A", status="error"), cell(ename="B", status="error"), "reply, ename"),
        (cell(shown("a")), cell(shown("a", "update_display_data")), "message 1 (display_data)"),
        (cell(shown("a")), cell(shown("b")), "message 1 (display_data), data, text/plain"),
        (cell(shown("a", metadata={"k": 1})), cell(shown("a")), "message 1 (display_data), metadata, k"),
        (cell(shown("a", display="p")), cell(shown("a")), "message 1 (display_data), display"),
        (
            cell(shown("a", "execute_result", execution_count=1)),
            cell(shown("a", "execute_result", execution_count=2)),
            "message 1 (execute_result), execution_count",
        ),
        (
            cell(("clear_output", {"wait": True})), cell(("clear_output", {"wait": False})),
            "message 1 (clear_output), wait",
        ),
        (cell(shown("a"), ("clear_output", {"wait": False})), cell(shown("a")), "message 2 (clear_output)"),
        (cell(image(1, "red")), cell(image(1, "blue")), "message 1 (display_data), data, image/png"),
    ],
)  # fmt: skip
def test_compare_sees_what_a_front_end_is_told(one: CellRun, other: CellRun, what: str) -> None:
    assert whats(one, one) == []
    assert any(found.startswith(what) for found in whats(one, other)), whats(one, other)
    assert any(found.startswith(what) for found in whats(other, one)) or "payload" in what


def test_compare_images_by_what_they_show() -> None:
    assert image(0, "red") != image(9, "red")
    assert whats(cell(image(0, "red")), cell(image(9, "red"))) == []


def test_compare_displays_by_which_one_is_updated_not_by_id() -> None:
    def both(first: str, second: str, updated: str) -> CellRun:
        update = shown("c", "update_display_data", updated)
        return cell(shown("a", display=first), shown("b", display=second), update)

    assert whats(both("p", "q", "p"), both("r", "s", "r")) == []
    assert whats(both("p", "q", "p"), both("r", "s", "s")) == ["message 3 (update_display_data), display"]


def test_compare_final_outputs_of_an_earlier_cell_count() -> None:
    def with_output(text: str) -> CellRun:
        made = cell(shown("a", display="p"))
        made.outputs = [{"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}]
        return made

    assert whats(with_output("new"), with_output("old")) == ["output 1 (display_data), data, text/plain"]


def test_compare_folder_of_the_run_does_not_count() -> None:
    one, other = notebook(cell(stream("in /w/one/x"))), notebook(cell(stream("in /w/two/x")), folder="/w/two")
    assert compare(one, other)[0].differences == ()
    assert compare(one, notebook(cell(stream("in /w/two/x"))))[0].differences


def test_compare_widgets_by_state_and_by_which_one_is_shown_not_by_id() -> None:
    def with_widgets(first: str, second: str, view: str, value: int) -> CellRun:
        made = cell(shown("w"))
        made.messages[0][1]["data"]["application/vnd.jupyter.widget-view+json"] = {"model_id": view}
        made.comms = [first, second]
        made.widgets = {second: {"value": value, "layout": f"IPY_MODEL_{first}"}}
        return made

    one = with_widgets("aaaa", "bbbb", "bbbb", 3)
    assert whats(one, with_widgets("cccc", "dddd", "dddd", 3)) == []
    assert whats(one, with_widgets("cccc", "dddd", "cccc", 3))
    assert whats(one, with_widgets("cccc", "dddd", "dddd", 4)) == ["<widget 2>, value"]
