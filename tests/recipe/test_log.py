from __future__ import annotations

import pytest

from looseleaf.errors import PreconditionFailed
from looseleaf.recipe import CellRun, ExecutionLog, analyze
from looseleaf.recipe import log as log_module


def test_log_gap_is_refused_with_next_sequence(session) -> None:
    log = session("x = 1")
    with pytest.raises(PreconditionFailed, match="LOG_GAP") as caught:
        log.record(CellRun(3, "c", "y = 1", ok=True))
    assert caught.value.fields["next_sequence"] == 2


def test_log_repeated_run_is_ignored(session) -> None:
    log = session("x = 1", "y = 1")
    log.record(CellRun(1, "c", "del x, y", ok=True))
    assert log.length == 2
    assert log.state_names() == {"x", "y"}


def test_log_latest_executed_definition_wins_out_of_order(ask) -> None:
    # The document says f -> a; the cell that ran last says f -> b.
    assert ask("f()", "a = b = 1", "def f(): return b", "def f(): return a").state_names == ("a", "f")
    assert ask("f()", "a = b = 1", "def f(): return a", "def f(): return b").state_names == ("b", "f")


def test_log_reexecuted_cell_replaces_its_definition(session) -> None:
    log = session("def f(): return a", "f = 3", "def f(): return a")
    assert log.definitions["f"].kind == "code"
    assert log.definitions["f"].sequence == 3


def test_log_failing_cell_may_or_may_not_have_bound(ask, session) -> None:
    log = session("a = b = 1", "def f(): return a")
    log.record(CellRun(3, "c", "def f(): return b\n1/0\ndel a", ok=False))
    assert analyze("f()", cell_id="", log=log, headers=None, version=0).state_names == ("a", "b", "f")


def test_log_failing_cell_may_have_ended_between_two_definitions(session) -> None:
    log = session("a = b = 1")
    log.record(CellRun(2, "c", "def f(): return a\n1/0\ndef f(): return b", ok=False))
    assert analyze("f()", cell_id="", log=log, headers=None, version=0).state_names == ("a", "b", "f")


def test_log_conditional_definition_keeps_the_old_one(ask) -> None:
    assert ask("f()", "a = b = c = 1", "def f(): return a", "if c:\n  def f(): return b").state_names == ("a", "b", "f")


def test_log_deleted_name_is_not_live(session) -> None:
    assert session("x = y = 1", "del x").state_names() == {"y"}
    assert session("x = y = 1", "if y: del x").state_names() == {"x", "y"}


def test_log_name_bound_and_deleted_in_one_cell_is_not_live(session) -> None:
    log = session("x = 1", "x = 2\ndel x\ny = 1")
    assert log.definitions.keys() == {"y"}


def test_log_future_annotations_hold_for_later_cells(ask) -> None:
    assert ask("def f(x: B): pass", "B = 1", "from __future__ import annotations").state_names == ()
    assert ask("def f(x: B): pass", "B = 1").state_names == ("B",)


def test_log_global_written_by_a_called_function_is_live(session) -> None:
    assert "made" in session("def f():\n  global made\n  made = 1", "f()").state_names()


def test_log_unparseable_run_changes_nothing(session) -> None:
    assert session("x = 1", "y = = 2").state_names() == {"x"}


def test_log_definitions_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "DEFINITIONS_MAX", 3)
    log = ExecutionLog()
    for i in range(5):
        log.record(CellRun(i + 1, "c", f"x{i} = 1", ok=True))
    assert set(log.definitions) == {"x2", "x3", "x4"}


@pytest.mark.parametrize(
    ("line", "left"),
    [("%reset -f", set()), ("%reset -sf", set()), ("%reset -f in", {"a", "b"}), ("%reset", {"a", "b"}),
     ("%reset -f\nc = 1", {"c"}), ("%reset_selective -f a", {"a", "b"})],
)  # fmt: skip
def test_log_after_a_reset_has_what_came_after_it(session, ask, line: str, left: set[str]) -> None:
    assert set(session("a = b = 1", line).definitions) == left
    recipe = ask(line, "a = b = 1").recipe
    # It needs no value, and may take any name away.
    assert (recipe.names, recipe.dynamic, set(recipe.defines) >= {"a", "b"}) == ((), False, True)
