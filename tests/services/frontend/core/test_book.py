from __future__ import annotations

import pytest

from looseleaf.errors import PreconditionFailed
from looseleaf.ids import SessionId
from looseleaf.recipe import CellRun, NameFacts, Recipe
from looseleaf.services.frontend.core import book as book_module
from looseleaf.services.frontend.core.book import EDIT_ORDER_S, RecipeKey, SessionBook
from looseleaf.services.frontend.core.facts_cache import FactsCache, StateFacts

S = SessionId("s")


def runs(*sources: str, first: int = 1) -> list[CellRun]:
    return [CellRun(first + i, "c", source, ok=True) for i, source in enumerate(sources)]


def book(sessions_max: int = 10, runs_max: int = 100) -> SessionBook:
    return SessionBook(sessions_max=sessions_max, runs_max=runs_max)


def key(text: str = "t", length: int = 0) -> RecipeKey:
    return RecipeKey(text, "c", "", True, 1, 1, length)


def test_book_restarted_kernel_begins_a_new_log() -> None:
    b = book()
    assert b.record(S, runs("a = 1", "b = 1")) == 3
    assert b.record(S, runs("z = 1")) == 2
    assert b.entry(S).log.state_names() == {"z"}


def test_book_differing_run_in_the_middle_asks_for_all() -> None:
    b = book()
    b.record(S, runs("a = 1", "b = 1", "c = 1"))
    assert b.record(S, runs("other = 1", first=2)) == 1


def test_book_longer_log_of_an_older_epoch_is_forgotten() -> None:
    b = book()
    b.record(S, runs("a = 1", "b = 1"))
    b.check_log(b.entry(S), 2, 1)
    b.check_log(b.entry(S), 1, 1)
    with pytest.raises(PreconditionFailed, match="SESSION_LOG_STALE"):
        b.check_log(b.entry(S), 1, 2)
    b.record(S, runs("a = 1"))
    b.check_log(b.entry(S), 1, 2)


def test_book_new_epoch_with_the_same_log_keeps_it() -> None:
    b = book()
    b.record(S, runs("a = 1", "b = 1"))
    b.check_log(b.entry(S), 2, 1)
    b.check_log(b.entry(S), 2, 2)
    assert b.entry(S).log.length == 2


def test_book_least_recently_used_session_is_forgotten() -> None:
    b = book(sessions_max=2)
    for name in ("a", "b"):
        b.record(SessionId(name), runs("x = 1"))
    b.entry(SessionId("a"))
    b.entry(SessionId("c"))
    assert len(b) == 2
    assert b.entry(SessionId("a")).log.length == 1
    assert b.entry(SessionId("b")).log.length == 0


def test_book_fingerprints_have_a_limit_and_the_log_goes_on() -> None:
    b = book(runs_max=2)
    assert b.record(S, runs("a = 1", "b = 1", "c = 1")) == 4
    assert len(b.entry(S).fingerprints) == 2
    assert b.record(S, runs("d = 1", first=4)) == 5


def test_book_edits_newest_wins_until_the_numbering_starts_anew() -> None:
    b = book()
    assert b.admit_edit(S, 7, 100.0)
    assert b.admit_edit(S, 7, 100.1)
    assert not b.admit_edit(S, 6, 100.2)
    assert b.is_newest_edit(S, 7)
    assert b.admit_edit(S, 1, 100.1 + EDIT_ORDER_S)


def test_book_recipes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "RECIPES_PER_SESSION_MAX", 2)
    b = book()
    entry = b.entry(S)
    for text in ("a", "b"):
        b.remember(entry, key(text), Recipe(cell_id=text))
    assert b.recipe(entry, key("a")) is not None
    b.remember(entry, key("c"), Recipe(cell_id="c"))
    assert b.recipe(entry, key("b")) is None
    assert b.recipe(entry, key("a", length=1)) is None


def test_facts_cache_is_bounded_by_names() -> None:
    cache = FactsCache(names_max=3)
    for name in ("a", "b"):
        cache.put(SessionId(name), StateFacts(names={"x": NameFacts(), "y": NameFacts()}))
    assert cache.get(SessionId("a")) is None
    assert cache.get(SessionId("b")) is not None
    cache.put(SessionId("b"), StateFacts(names=dict.fromkeys("wxyz", NameFacts())))
    assert cache.get(SessionId("b")) is None
