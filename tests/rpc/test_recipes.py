from __future__ import annotations

import dataclasses

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import CellRun, DeviceLabel, Observation, Recipe
from looseleaf.rpc.recipes import recipe_from_proto, recipe_to_proto, run_from_proto, run_to_proto
from looseleaf.v1 import recipe_pb2

FULL = Recipe(
    "cell", "ab" * 16, 7, ("a", "b"), ("torch",), ("helper.py",), DeviceLabel.GPU, "Because.", 0.75, True, True,
    ("c",), 2, 10, 5, 3, "env", "ab", 6,
)  # fmt: skip


def test_recipe_message_round_trip_is_identity() -> None:
    assert recipe_from_proto(recipe_to_proto(FULL)) == FULL
    assert recipe_from_proto(recipe_to_proto(Recipe())) == Recipe()


def test_recipe_message_has_every_field_of_the_recipe() -> None:
    names = {field.name for field in recipe_pb2.ExecutionRecipe.DESCRIPTOR.fields}
    assert names == {field.name for field in dataclasses.fields(Recipe)}
    assert len(recipe_to_proto(FULL).ListFields()) == len(names)


def test_recipe_message_without_label_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="RECIPE_MALFORMED"):
        recipe_from_proto(recipe_pb2.ExecutionRecipe())


def test_run_message_round_trip_is_identity() -> None:
    for observed in (None, Observation("ab", True, 5, 0.5), Observation("", False)):
        run = CellRun(3, "c", "x = 1", ok=True, observed=observed)
        assert run_from_proto(run_to_proto(run)) == run
