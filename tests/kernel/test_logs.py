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


def test_every_line_names_the_session_and_the_run(tmp_path: Path, logger: logging.Logger, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOOSELEAF_LOG_DIR", str(tmp_path))
    ids = {"session": "s-1", "execution": ""}
    log_to_file(KernelConfig(run_dir=str(tmp_path)), lambda: ids)
    logger.error("one")
    ids["execution"] = "e-2"
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("two session=s-1")
    ids["session"] = "s-3"
    logger.error("three %d%%", 5)
    lines = next(tmp_path.glob("kernel-*.log")).read_text().splitlines()
    assert lines[0].endswith(" one session=s-1")
    assert lines[1].endswith(" two session=s-1 execution=e-2") and lines[-2].startswith("ValueError")
    assert lines[-1].endswith(" three 5% session=s-3 execution=e-2")
