"""The kernel's own log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.kernel.logs import log_to_file
from looseleaf.kernel_config import KernelConfig


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Ours, as it was afterwards."""
    ours = logging.getLogger("looseleaf")
    before = (ours.propagate, list(ours.handlers), ours.level)
    yield ours
    for handler in ours.handlers:
        handler.close()
    ours.propagate, ours.handlers, ours.level = before


def test_log_that_cannot_be_written_says_nothing_in_the_notebook(
    tmp_path: Path, logger: logging.Logger, monkeypatch: Any, capfd: Any
) -> None:
    folder = tmp_path / "logs"
    monkeypatch.setenv("LOOSELEAF_LOG_DIR", str(folder))
    log_to_file(KernelConfig(run_dir=str(tmp_path)))
    folder.rmdir()
    logger.error("lost")
    assert capfd.readouterr() == ("", "")
