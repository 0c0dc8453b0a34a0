from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from looseleaf.kernel.surroundings import Surroundings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("helper.py", "other.py", "pkg/__init__.py", "pkg/part.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('nothing here may run')")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import helper, json", {"helper": "helper.py"}),
        ("def f():\n  from pkg.part import x", {"pkg": "pkg/__init__.py", "pkg.part": "pkg/part.py"}),
        ("import helper\nx = (", {"helper": "helper.py"}),
        ("import no_such, json", {}),
        ("", {}),
    ],
)
def test_modules_beside_the_notebook_are_found_without_running_them(
    folder: Path, source: str, found: dict[str, str]
) -> None:
    assert Surroundings().local_modules(source) == found
    assert not {"helper", "pkg", "pkg.part"} & sys.modules.keys()


def test_imported_modules_beside_the_notebook_are_told_whatever_the_cell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> str:
            raise AssertionError(name)

    helper, lazy = types.ModuleType("helper"), Lazy("lazy")
    helper.__file__ = str(folder / "helper.py")
    del lazy.__dict__["__loader__"]
    monkeypatch.setitem(sys.modules, "helper", helper)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    surroundings = Surroundings()
    assert surroundings.local_modules("x = 1") == {"helper": "helper.py"}
    # One that comes later, and one that goes.
    other = types.ModuleType("pkg.part")
    other.__file__ = str(folder / "pkg" / "part.py")
    monkeypatch.setitem(sys.modules, "pkg.part", other)
    monkeypatch.delitem(sys.modules, "helper")
    assert surroundings.local_modules("x = 1") == {"pkg.part": "pkg/part.py"}


def test_working_directory_that_was_deleted_has_no_modules(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        assert Surroundings().local_modules("import helper") == {}


def test_environment_id_is_the_same_until_something_is_installed(folder: Path) -> None:
    surroundings = Surroundings()
    assert surroundings.tell("x")["environment_id"] == surroundings.tell("y")["environment_id"] != ""
