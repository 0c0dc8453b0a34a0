"""A daemon's parts over scripted workers and a store in memory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from daemon_fakes import Parts, parts_of_a_daemon
from execution_bench import Bench


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    async with parts_of_a_daemon() as made:
        yield made


@pytest.fixture
def bench(parts: Parts) -> Bench:
    return Bench(parts, parts.pool())
