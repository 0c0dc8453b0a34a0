"""What the tests of batch runs and of `looseleaf run` share: notebooks, and the kernel tests' fake daemon."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4 as nbf
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))
from kernel_fake_daemon import FakeDaemon, FakeStore


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


def write_notebook_of(path: Path, *sources: str, **metadata: Any) -> Path:
    """The same as a file."""
    nbformat.write(notebook_of(*sources, **metadata), path)
    return path
