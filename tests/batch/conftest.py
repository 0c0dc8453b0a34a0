"""Notebooks for batch runs, and the daemon that runs their GPU cells."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from batch_fixtures import daemon, notebook_of

__all__ = ["daemon"]


@pytest.fixture
def make_notebook() -> Any:
    """See notebook_of."""
    return notebook_of
