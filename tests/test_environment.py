from __future__ import annotations

import os
from pathlib import Path

import pytest

from looseleaf.environment import Environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg-1.0.dist-info").mkdir()
    (tmp_path / "paths.pth").write_text("")
    (tmp_path / "pkg.py").write_text("")
    return tmp_path


def test_id_is_stable_and_depends_on_the_interpreter(folder: Path) -> None:
    here = Environment("python 3.11", (str(folder),))
    assert here.identify() == Environment("python 3.11", (str(folder),)).identify()
    assert here.identify() != Environment("python 3.12", (str(folder),)).identify()


@pytest.mark.parametrize(
    "step",
    [
        lambda f: (f / "other-2.dist-info").mkdir(),
        lambda f: (f / "pkg-1.0.dist-info").rename(f / "pkg-1.1.dist-info"),
        lambda f: (f / "pkg-1.0.dist-info").rmdir(),
        lambda f: os.utime(f / "pkg-1.0.dist-info", ns=(1, 1)),
        lambda f: (f / "new.pth").write_text("/x"),
        lambda f: os.utime(f / "paths.pth", ns=(1, 1)),
        lambda f: (f / "dev.egg-link").write_text("/x"),
    ],
)
def test_id_changes_with_every_install(folder: Path, step) -> None:
    environment = Environment("p", (str(folder),))
    before = environment.identify()
    step(folder)
    assert environment.identify() != before


def test_id_does_not_change_with_caches_and_files_of_a_package(folder: Path) -> None:
    environment = Environment("p", (str(folder),))
    before = environment.identify()
    (folder / "__pycache__").mkdir()
    (folder / "pkg.py").write_text("x = 1")
    assert environment.identify() == before


def test_folder_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    environment = Environment("p", (str(tmp_path / "later"),))
    before = environment.identify()
    (tmp_path / "later").mkdir()
    assert environment.identify() == before
    (tmp_path / "later" / "a-1.dist-info").mkdir()
    assert environment.identify() != before


def test_this_process_has_site_folders_and_not_its_working_directory() -> None:
    here = Environment.here()
    assert any("site-packages" in folder for folder in here.site_dirs)
    assert os.getcwd() not in here.site_dirs
