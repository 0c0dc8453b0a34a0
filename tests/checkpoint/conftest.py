"""Fixtures of the state engine's tests: a store in a directory and processes to save and restore in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checkpoint_nursery import DirectoryIO, Nursery


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def process(nursery, tmp_path):
    """`process(source)`: runs session steps in a fresh process over this test's store; returns its `result`."""
    return lambda source: nursery.run(tmp_path / "store", source)


@pytest.fixture
def directory_io(tmp_path):
    return DirectoryIO(tmp_path / "store")
