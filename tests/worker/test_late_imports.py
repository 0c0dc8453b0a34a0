from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from looseleaf.worker.late_imports import LateImports

INSTALLED = pytest.__file__


def planted(name: str, origin: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin=origin)
    monkeypatch.setitem(sys.modules, name, module)


def test_installed_packages_count_once_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = LateImports()
    assert imports.count() == 0
    planted("ll_new", INSTALLED, monkeypatch)
    planted("ll_new.part", INSTALLED, monkeypatch)
    planted("ll_own", "/home/me/ll_own.py", monkeypatch)
    planted("ll_built_in", None, monkeypatch)
    assert imports.count() == 1
    assert LateImports().count() == 0


def test_what_else_lies_among_the_modules_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was looked at")

    imports = LateImports()
    monkeypatch.setitem(sys.modules, "ll_trap", Trap("ll_trap"))
    monkeypatch.setitem(sys.modules, "ll_thing", object())
    assert imports.count() == 0
