"""Replies of cells that did not run in the kernel's process."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.kernel.replies import CellReplies


class History:
    def __init__(self) -> None:
        self.stored: list[tuple[int, str, str]] = []

    def store_inputs(self, count: int, transformed: str, source: str) -> None:
        self.stored.append((count, transformed, source))


class Shell:
    """What replies use of an IPython shell."""

    def __init__(self) -> None:
        self.execution_count = 4
        self.exit_now = False
        self.history_manager = History()

    def transform_cell(self, source: str) -> str:
        if source == "%%broken":
            raise SyntaxError(source)
        return source.upper()

    def user_expressions(self, expressions: dict[str, str]) -> dict[str, Any]:
        return {name: f"value of {text}" for name, text in expressions.items()}


class Published:
    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        self.messages.append((msg_type, content))


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_finished_cell_is_in_the_history_under_its_own_number(shell: Shell) -> None:
    shell.execution_count = 9
    reply = CellReplies(shell, Published()).finished("x", 4, {"status": "ok"}, {"e": "y"})
    assert (reply["status"], reply["execution_count"]) == ("ok", 4)
    assert reply["user_expressions"] == {"e": "value of y"}
    assert shell.history_manager.stored == [(4, "X", "x")] and shell.execution_count == 5


def test_failed_cell_has_its_error_and_evaluates_nothing(shell: Shell) -> None:
    told = {"status": "error", "ename": "E", "evalue": "why", "traceback": ["line"]}
    reply = CellReplies(shell, Published()).finished("x", 4, told, {"e": "y"})
    assert (reply["ename"], reply["evalue"], reply["traceback"]) == ("E", "why", ["line"])
    assert reply["user_expressions"] == {}


@pytest.mark.parametrize("keep", [True, False])
def test_cell_that_asked_to_exit_ends_the_kernel_unless_it_keeps_it(shell: Shell, keep: bool) -> None:
    told = {"status": "ok", "payload": [{"source": "ask_exit", "keepkernel": keep}]}
    CellReplies(shell, Published()).finished("exit", 4, told)
    assert shell.exit_now is not keep


def test_refused_cell_shows_its_error_and_uses_up_a_number(shell: Shell) -> None:
    published = Published()
    reply = CellReplies(shell, published).refused("%%broken", "NO_CLUSTER", "there is none")
    assert (reply["status"], reply["ename"], reply["execution_count"]) == ("error", "NO_CLUSTER", 4)
    [(kind, content)] = published.messages
    assert kind == "error" and content["ename"] == "NO_CLUSTER"
    assert shell.history_manager.stored == [(4, "%%broken", "%%broken")] and shell.execution_count == 5
