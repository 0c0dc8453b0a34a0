"""Fixtures of the fault tests: one pool for all of them, and two notebooks.

The oracle: a cell counts itself in a file when it starts (at most 1 for each execution), and the store's list of a
session's versions is one line of descent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Notebook
from tests.faults.fault_pool import Pool


@pytest.fixture(scope="package")
def whole_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One for all tests of this folder."""
    pool = Pool(tmp_path_factory.mktemp("f"))
    yield pool
    pool.close()


@pytest.fixture(scope="package")
def notebooks(whole_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Notebook, Notebook]]:
    """Two for all tests."""
    opened = [whole_pool.notebook(tmp_path_factory.mktemp("n")) for _ in range(2)]
    yield opened[0], opened[1]
    for notebook in opened:
        notebook.close()


@pytest.fixture
def pool(whole_pool: Pool) -> Iterator[Pool]:
    """The pool, with nothing cut before and after the test."""
    whole_pool.mend()
    yield whole_pool
    whole_pool.mend()


@pytest.fixture
def one(notebooks: tuple[Notebook, Notebook]) -> Notebook:
    """A notebook."""
    return notebooks[0]


@pytest.fixture
def two(notebooks: tuple[Notebook, Notebook]) -> Notebook:
    """Another notebook."""
    return notebooks[1]

