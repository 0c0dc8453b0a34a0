"""Epochs are remembered, within a bound."""

from __future__ import annotations

import pytest

from looseleaf.ids import Epoch, SessionId
from looseleaf.services.scheduler.core.sessions import Session, SessionTable


def test_table_beyond_its_bound_drops_the_longest_unused_that_nobody_needs() -> None:
    table = SessionTable(2)
    for name in ("a", "b", "c", "d"):
        table.touch(SessionId(name)).epoch = Epoch(5)
    table.touch(SessionId("b"))
    assert table.prune(lambda: {SessionId("a")}) == ["c", "d"]
    assert (table.epoch(SessionId("a")), table.epoch(SessionId("c"))) == (5, 0)


def test_table_that_is_needed_as_a_whole_keeps_everything() -> None:
    table = SessionTable(1)
    for name in ("a", "b", "c"):
        table.touch(SessionId(name))
    assert table.prune(lambda: {SessionId(name) for name in ("a", "b", "c")}) == []
    assert len(table) == 3


def test_frequency_halves_over_its_half_life() -> None:
    session = Session(Epoch(1))
    assert session.count_run(0.0, 100.0) == 1.0
    assert session.count_run(100.0, 100.0) == pytest.approx(1.5)
