"""The comparer itself: it sees what a person would see, and nothing else."""

from __future__ import annotations

from typing import Any

import nbformat.v4 as nbf
from golden_compare import compare

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # fmt: skip


def notebook(*outputs: Any, number: int = 1) -> Any:
    return nbf.new_notebook(cells=[nbf.new_code_cell("x", id="c1", execution_count=number, outputs=list(outputs))])


def stream(text: str, name: str = "stdout") -> Any:
    return nbf.new_output("stream", name=name, text=text)


def error(line: int, pid: int) -> Any:
    place = f"File /tmp/ipykernel_{pid}/12{pid}.py:{line}, in f()"
    lines = [f"\x1b[0;31mValueError\x1b[0m at 0x7f00deadbeef{pid}", place]
    return nbf.new_output("error", ename="ValueError", evalue="v", traceback=lines)


def whats(one: Any, other: Any) -> list[str]:
    return [difference.what for difference in compare(one, other)]


def test_compare_times_addresses_and_paths_do_not_count() -> None:
    assert whats(notebook(stream("Wall time: 5 s\n")), notebook(stream("Wall time: 70 ms\n"))) == []
    assert whats(notebook(error(3, 11)), notebook(error(3, 22))) == []


def test_compare_split_streams_are_one_text() -> None:
    assert whats(notebook(stream("a"), stream("b")), notebook(stream("ab"))) == []


def test_compare_order_of_outputs_counts_but_that_of_stdout_and_stderr() -> None:
    shown = nbf.new_output("display_data", data={"text/plain": "d"})
    one, other = notebook(stream("a"), stream("b", "stderr")), notebook(stream("b", "stderr"), stream("a"))
    assert whats(one, other) == []
    assert whats(notebook(stream("a"), shown), notebook(shown, stream("a"))) == ["kinds of outputs"]
    assert whats(notebook(stream("a")), notebook(stream("b"))) == ["output 1 (streams), stdout"]


def test_compare_line_of_a_traceback_and_number_of_a_cell_count() -> None:
    assert whats(notebook(error(3, 1)), notebook(error(4, 1))) == ["output 1 (error), traceback"]
    assert whats(notebook(), notebook(number=2)) == ["number"]


def test_compare_images_by_size_and_texts_by_letter() -> None:
    def shown(text: str) -> Any:
        return nbf.new_output("display_data", data={"text/plain": text, "image/png": PNG})

    assert whats(notebook(shown("<Figure>")), notebook(shown("<Figure>"))) == []
    other = whats(notebook(shown("<Figure>")), notebook(shown("<Other>")))
    assert other == ["output 1 (display_data), data text/plain"]
    missing = nbf.new_output("display_data", data={"text/plain": "<Figure>"})
    assert whats(notebook(shown("<Figure>")), notebook(missing)) == ["output 1 (display_data), data image/png"]
    assert whats(notebook(shown("<Figure>")), notebook()) == ["kinds of outputs"]
