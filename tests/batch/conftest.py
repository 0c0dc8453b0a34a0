"""The kernel tests' fake daemon, for batch runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest
from jupyter_core.utils import ensure_event_loop

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))
from kernel_fake_daemon import FakeDaemon, FakeStore


@pytest.fixture(scope="session", autouse=True)
def client_loop() -> None:
    """jupyter_client keeps one event loop for all its blocking calls; it is no test's leak."""
    ensure_event_loop()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A daemon, and nobody's cluster, history or log."""
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    fake = FakeDaemon(tmp_path / "d.sock", FakeStore()).start()
    yield fake
    fake.stop()


def notebook_of(*sources: str, **metadata: Any) -> Any:
    """A notebook with these code cells, ids c0, c1, ...; `metadata` by cell id."""
    cells = [
        nbf.new_code_cell(source, id=f"c{number}", metadata=metadata.get(f"c{number}", {}))
        for number, source in enumerate(sources)
    ]
    return nbf.new_notebook(cells=cells)


@pytest.fixture
def make_notebook() -> Any:
    """See notebook_of."""
    return notebook_of
