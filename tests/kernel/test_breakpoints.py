"""Breakpoints that a cell on a worker passes by are named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from looseleaf.kernel.breakpoints import NOTE, breakpoints_note

FILE = "/tmp/ipykernel_9/5.py"


@pytest.mark.parametrize(
    ("started", "breakpoints", "note"),
    [(True, {FILE: [{"line": 1}]}, NOTE), (True, {FILE: []}, ""), (True, {"other.py": [{"line": 1}]}, ""),
     (False, {FILE: [{"line": 1}]}, "")],
)  # fmt: skip
def test_note_is_for_breakpoints_in_the_cell_itself(started: bool, breakpoints: dict, note: str) -> None:
    assert breakpoints_note(SimpleNamespace(is_started=started, breakpoint_list=breakpoints), FILE) == note


def test_kernel_without_a_debugger_has_nothing_to_say() -> None:
    assert breakpoints_note(None, FILE) == ""
