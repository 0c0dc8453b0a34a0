from __future__ import annotations

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import NameFacts, Recipe, source_hash, with_logged_names


def test_recipe_map_round_trip_is_identity(ask) -> None:
    recipe = ask("%%gpu 2\nimport a\nb = c + d", "c = d = 1").recipe
    assert Recipe.from_map(recipe.to_map()) == recipe
    assert all(isinstance(v, (str, int, float, bool, list)) for v in recipe.to_map().values())


def test_recipe_map_ignores_unknown_keys() -> None:
    assert Recipe.from_map({"cell_id": "c", "novelty": 1}).cell_id == "c"


@pytest.mark.parametrize("wrong", [{"names": [1]}, {"label": "tpu"}, {"version": "x"}, {"dynamic": 3}, {"names": None}])
def test_recipe_map_malformed_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="RECIPE_MALFORMED"):
        Recipe.from_map(wrong)


def test_recipe_defines_name_all_that_may_change(ask) -> None:
    cells = ["m = d = cnt = 1", "def f():\n  global cnt\n  cnt += 1"]
    assert ask("import os\nx = 1\nm.train()\nd[0] = 2\nf()", *cells).recipe.defines == ("cnt", "d", "m", "os", "x")


def test_recipe_hash_is_of_the_text() -> None:
    assert source_hash("x") == source_hash("x") != source_hash("x ")
    assert len(source_hash("\ud800")) == 32


def test_with_logged_names_adds_names_whose_commit_is_under_way(ask, session) -> None:
    log = session("a = 1", "b = 2")
    merged = with_logged_names({"a": NameFacts(kind="instance")}, log)
    assert merged["a"].kind == "instance"
    assert ask("a + b", "a = 1", "b = 2", headers=merged).state_names == ("a", "b")


def test_recipe_of_a_checkout_needs_nothing_and_may_change_everything(ask) -> None:
    recipe = ask("%looseleaf checkout 3", "a = b = 1", "def f(): return a").recipe
    assert (recipe.names, recipe.defines, recipe.label) == ((), ("a", "b", "f"), "cpu")


def test_recipe_of_a_restore_needs_nothing_and_changes_its_names(ask) -> None:
    recipe = ask("%looseleaf restore a b --version -2", "a = b = c = 1").recipe
    assert (recipe.names, recipe.defines) == ((), ("a", "b"))
    recipe = ask("%looseleaf restore a --as d", "a = b = c = 1").recipe
    assert (recipe.names, recipe.defines) == ((), ("d",))
