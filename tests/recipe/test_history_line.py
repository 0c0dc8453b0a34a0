"""Lines of the `%looseleaf` magic, and what recipes know of them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import CellRun
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.history_line import FORGET_ALL, HistoryLine, parse_history_line


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", HistoryLine("help")),
        ("log", HistoryLine("log")),
        ("log -n 5  # the last ones", HistoryLine("log", limit=5)),
        ("diff", HistoryLine("diff")),
        ("diff 3 -1", HistoryLine("diff", versions=(3, -1))),
        ("checkout 3 --force", HistoryLine("checkout", versions=(3,), force=True)),
        ("restore a b a", HistoryLine("restore", names=("a", "b"))),
        ("restore a --as b --version=-2", HistoryLine("restore", names=("a",), version=-2, target="b")),
        ("status", HistoryLine("status")),
        ("history -n 3", HistoryLine("history", limit=3)),
        ("release", HistoryLine("release")),
        ("pin 2m", HistoryLine("pin", seconds=120.0)),
        ("pin", HistoryLine("pin")),
        ("outputs", HistoryLine("outputs")),
        ("outputs 7", HistoryLine("outputs", execution="7")),
        ("outputs ab-12 --session s-1 -n 2", HistoryLine("outputs", execution="ab-12", session="s-1", limit=2)),
    ],
)
def test_line_is_read(line: str, wanted: HistoryLine) -> None:
    assert parse_history_line(line) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "frobnicate", "forget", "log 3", "log -n", "log -n 0", "log -n x", "log --force", "diff 1 2 3", "diff x",
        "checkout", "checkout 1 2", "checkout 0", "checkout 1.5", "checkout --force", "checkout 3 --force=yes",
        "restore", "restore 3", "restore a.b", "restore class", "restore a b --as c", "restore a --as",
        "restore a --as 1", "restore a --version", "restore a --version 1 --version 2",
        "pin x", "pin 1 2", "outputs 1 2", "outputs --session", "release all",
        "checkout 99999999999999999999999", 'restore "a', "checkout ²", "checkout ١",
    ],
)  # fmt: skip
def test_malformed_line_is_refused_with_the_way_to_help(line: str) -> None:
    with pytest.raises(InvalidArgument, match="MAGIC_MALFORMED") as caught:
        parse_history_line(line)
    assert "%looseleaf help" in caught.value.message


@given(st.text(max_size=40))
def test_any_line_is_read_or_refused(line: str) -> None:
    with suppress(InvalidArgument):
        asked = parse_history_line(line)
        assert all(name.isidentifier() for name in asked.binds) and 0 not in asked.versions


def test_cell_that_restores_defines_the_name_and_needs_none() -> None:
    facts = analyze_cell("%looseleaf restore a b --version 3\nprint(a, c)")
    assert facts.defines == {"a", "b"} and facts.read_names == {"c", "print", "get_ipython"} and not facts.dynamic
    assert analyze_cell("%looseleaf restore a --as b").defines == {"b"}
    for line in ("%looseleaf checkout 3", "%looseleaf log", "%looseleaf restore 7"):
        facts = analyze_cell(line)
        assert not facts.defines and not facts.dynamic and facts.read_names <= {"get_ipython"}


def test_restored_function_may_read_what_its_text_says(ask) -> None:  # type: ignore[no-untyped-def]
    cells = ["a = 1", "def f(): return a", "%looseleaf restore f"]
    assert ask("f()", *cells).state_names == ("a", "f")
    assert ask("g()", *cells, "%looseleaf restore f --as g --version 2").state_names == ("a", "f", "g")
    assert ask("f()", "%looseleaf restore f").state_names == ("f",)


def test_forgetting_unbinds_every_name(session) -> None:  # type: ignore[no-untyped-def]
    log = session("x = 1", "def f(): return x")
    log.record(CellRun(3, "", FORGET_ALL, ok=True))
    assert not log.definitions and log.length == 3
    log.record(CellRun(4, "c", "y = 1", ok=True))
    assert log.state_names() == {"y"}
