"""What is kept of classes goes with them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from looseleaf.checkpoint import class_answers
from looseleaf.checkpoint.class_answers import kept_by_class


def made(name: str) -> type:
    return type(name, (), {})


def test_class_is_asked_once_and_each_one_for_itself() -> None:
    asked: list[str] = []

    @kept_by_class
    def name_of(kind: type) -> str:
        asked.append(kind.__name__)
        return kind.__name__

    one, other = made("One"), made("Other")
    assert [name_of(kind) for kind in (one, other, one, other)] == ["One", "Other", "One", "Other"]
    assert asked == ["One", "Other"]


def test_class_that_lies_where_one_was_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_answers, "id", lambda _kind: 7, raising=False)
    name_of = kept_by_class(lambda kind: kind.__name__)
    assert [name_of(kind) for kind in (int, str, int)] == ["int", "str", "int"]


def test_no_more_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_answers, "CLASSES_MAX", 2)
    asked: list[type] = []
    ask = kept_by_class(asked.append)
    for kind in (int, str, float, int):
        ask(kind)
    assert asked == [int, str, float, int]


def test_class_is_not_kept_alive_and_its_metaclass_not_asked() -> None:
    class Meta(type):
        def __hash__(cls) -> int:
            raise TypeError

        def __eq__(cls, other: object) -> bool:
            raise TypeError

    kind = Meta("Kind", (), {})
    name_of = kept_by_class(lambda kind: kind.__name__)
    assert (name_of(kind), name_of(kind)) == ("Kind", "Kind")
    alive = weakref.ref(kind)
    del kind
    gc.collect()
    assert alive() is None


def test_class_that_is_defined_again_is_not_kept_by_saves_or_restores(process: Any) -> None:
    cell = "class Net:\n    def __init__(self): self.x = [1]\n    def __del__(self): pass\nnet = Net()"
    found = process(f"""
import gc, weakref
from looseleaf.checkpoint.tracker import StateTracker
alive = []
for number in range(3):
    cell({cell!r})
    save()
    other = StateTracker(names := {{}}, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
    other.restore(["net"])
    alive += [weakref.ref(type(driver.namespace["net"])), weakref.ref(type(names["net"]))]
    del other, names
gc.collect()
result = [one() is not None for one in alive]
""")
    assert found == [False, False, False, False, True, False]
