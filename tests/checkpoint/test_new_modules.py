from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from looseleaf.checkpoint import new_modules
from looseleaf.checkpoint.new_modules import NewModules


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """What these tests see as `sys.modules`."""
    # With all that there is: what reports a failure imports too.
    found = {**sys.modules, **{name: ModuleType(name) for name in (f"old_{number}" for number in range(1000))}}
    monkeypatch.setattr(sys, "modules", found)
    return found


@pytest.fixture
def new(modules: dict[str, ModuleType]) -> NewModules:
    found = NewModules()
    found.mark()
    return found


def test_without_a_mark_all_modules_are_new(modules: dict[str, ModuleType]) -> None:
    assert NewModules().names() == list(modules)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 900])
def test_modules_that_came_since_the_mark_are_named_in_order(
    new: NewModules, modules: dict[str, ModuleType], count: int
) -> None:
    names = [f"new_{number}" for number in range(count)]
    modules.update({name: ModuleType(name) for name in names})
    assert new.names() == names


def test_module_of_before_that_is_imported_anew_hides_no_new_one(
    new: NewModules, modules: dict[str, ModuleType]
) -> None:
    modules["first"] = ModuleType("first")
    for number in range(1000):
        modules[f"old_{number}"] = modules.pop(f"old_{number}")
    modules["second"] = ModuleType("second")
    del modules["old_7"]
    assert new.names() == ["first", "second"]


def test_without_the_mark_in_place_what_was_known_is_still_not_new(
    new: NewModules, modules: dict[str, ModuleType]
) -> None:
    modules["first"] = ModuleType("first")
    del modules[new_modules.__name__]
    assert new.names() == ["first"]


def test_names_are_told_while_other_threads_import(new: NewModules, modules: dict[str, ModuleType]) -> None:
    names = [f"new_{number}" for number in range(5000)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    importing = threading.Thread(target=lambda: [modules.setdefault(name, ModuleType(name)) for name in names])
    importing.start()
    try:
        while importing.is_alive():
            found = new.names()
            assert found == names[: len(found)]
    finally:
        sys.setswitchinterval(before)
        importing.join()
    assert new.names() == names


def test_names_of_before_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    class Watched(dict[str, ModuleType]):
        def __reversed__(self) -> Iterator[str]:
            for name in reversed(list(self.keys())):
                looked_at.append(name)
                yield name

        def __iter__(self) -> Iterator[str]:
            looked_at.extend(self.keys())
            return super().__iter__()

    modules = Watched(sys.modules)
    monkeypatch.setattr(sys, "modules", modules)
    new = NewModules()
    new.mark()
    modules["first_of_test"] = new_modules
    looked_at.clear()
    found = new.names()
    monkeypatch.undo()
    assert found == ["first_of_test"]
    assert len(looked_at) <= 64 < len(modules)
