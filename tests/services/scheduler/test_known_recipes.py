"""Whole recipes are kept for what the policy prepares by itself: the newest of a session, and only so many."""

from __future__ import annotations

import pytest

from looseleaf.ids import SessionId, Version
from looseleaf.services.scheduler import known_recipes
from looseleaf.services.scheduler.core.facts import RecipeFacts
from looseleaf.services.scheduler.known_recipes import KnownRecipes
from looseleaf.v1.recipe_pb2 import ExecutionRecipe

S1 = SessionId("s1")


def test_recipe_of_another_text_or_an_older_state_is_not_given() -> None:
    known = KnownRecipes()
    known.put(S1, ExecutionRecipe(source_hash="old", version=1))
    known.put(S1, ExecutionRecipe(source_hash="new", version=2))
    assert known.get(S1, RecipeFacts("new", Version(2), exact=False)) == ExecutionRecipe(source_hash="new", version=2)
    for facts in (RecipeFacts("old", Version(1)), RecipeFacts("new", Version(1)), RecipeFacts("newer", Version(2))):
        assert known.get(S1, facts) is None
    assert known.get(SessionId("s2"), RecipeFacts("new", Version(2))) is None


def test_sessions_that_asked_long_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_recipes, "SESSIONS_MAX", 2)
    known = KnownRecipes()
    for name in ("s1", "s2", "s1", "s3"):
        known.put(SessionId(name), ExecutionRecipe(source_hash=name, version=1))
    assert len(known) == 2
    assert known.get(S1, RecipeFacts("s1", Version(1))) is not None
    assert known.get(SessionId("s2"), RecipeFacts("s2", Version(1))) is None
