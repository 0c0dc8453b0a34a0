from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from looseleaf.worker.own_files import OwnFiles

Write = Callable[[str], None]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnFiles]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield OwnFiles()
    sys.modules.pop("helper_of_test", None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    ticks = iter(range(1, 100))

    def put(text: str) -> None:
        path = tmp_path / "helper_of_test.py"
        path.write_text(text)
        # Two states of a file must not share a time, however quick this is.
        os.utime(path, (0, next(ticks)))
        importlib.invalidate_caches()

    return put


def test_file_that_changed_after_its_import_is_told(own: OwnFiles, write: Write) -> None:
    write("A = 1")
    importlib.import_module("helper_of_test")
    own.note()
    assert own.changed() == []
    write("A = 2")
    assert own.changed() == ["helper_of_test"]
    # What was met once is not forgotten by looking again.
    own.note()
    assert own.changed() == ["helper_of_test"]


def test_module_that_its_cell_reloaded_is_as_new(own: OwnFiles, write: Write) -> None:
    write("A = 1")
    module = importlib.import_module("helper_of_test")
    own.note()
    write("A = 22")
    importlib.reload(module)
    own.note()
    assert own.changed() == []


def test_file_that_went_has_changed(own: OwnFiles, write: Write, tmp_path: Path) -> None:
    write("A = 1")
    importlib.import_module("helper_of_test")
    own.note()
    (tmp_path / "helper_of_test.py").unlink()
    assert own.changed() == ["helper_of_test"]


def test_what_is_installed_or_was_there_before_is_not_own(own: OwnFiles) -> None:
    importlib.import_module("wave")
    own.note()
    assert "wave" not in own.changed()
