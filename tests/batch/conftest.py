"""Notebooks for batch runs, and the daemon that runs their GPU cells."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
from batch_fixtures import daemon, notebook_of

__all__ = ["daemon"]


@pytest.fixture
def make_notebook() -> Any:
    """See notebook_of."""
    return notebook_of


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One host with one virtual GPU, without the times of a real attach."""
    folder = tmp_path_factory.mktemp("c")
    with LocalCluster.start(data=folder, gpus=1, device="emulated", emulated_delays=False) as running:
        yield running
