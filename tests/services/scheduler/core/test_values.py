"""Values of the policy are frozen by mypy only (`values.value`): here no code may assign to one while worlds run."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from looseleaf.services.scheduler.core import actions, events, facts, placement
from looseleaf.services.scheduler.core.facts import Totals
from tests.services.scheduler.core.random_world import World

VALUES = [
    found for module in (actions, events, facts, placement) for found in vars(module).values()
    if isinstance(found, type) and found.__module__ == module.__name__ and is_dataclass(found)]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assignments to fields of values fail but in their making."""
    for kind in VALUES:
        def assign(self: Any, name: str, new: Any, made_by: Any = kind.__init__.__code__) -> None:
            assert sys._getframe(1).f_code is made_by, f"{type(self).__name__}.{name} is changed"
            object.__setattr__(self, name, new)

        monkeypatch.setattr(kind, "__setattr__", assign, raising=False)


@pytest.mark.usefixtures("frozen")
def test_assignment_to_a_value_is_noticed_here() -> None:
    with pytest.raises(AssertionError, match=r"Totals\.held_gpu_s is changed"):
        Totals().held_gpu_s = 1.0  # type: ignore[misc]


@pytest.mark.usefixtures("frozen")
def test_policy_changes_no_value_in_a_random_world() -> None:
    World(20_000).run()


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_value_has_slots_compares_and_hashes_by_its_fields(kind: type) -> None:
    names = [field.name for field in fields(kind)]
    one, same = (kind(**dict.fromkeys(names, 1)) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert not hasattr(one, "__dict__")
    assert one != kind(**dict.fromkeys(names, 2)) or not names
