"""Cells that count their starts, and what the tests wait for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from looseleaf.local.cluster import wait_for

# What every wait has at most: a loaded machine starts processes slowly.
LIMIT_S = 120.0


class HeldCell:
    """A GPU cell that counts its start in a file and ends when it may; `then` is run before its end."""

    def __init__(self, folder: Path, name: str = "cell", then: str = "") -> None:
        self._counter, self._may_end = folder / f"{name}-starts", folder / f"{name}-may-end"
        self.code = (
            "%%gpu\nimport pathlib, time, torch\n"
            f"pathlib.Path({str(self._counter)!r}).open('a').write('x')\n"
            f"while not pathlib.Path({str(self._may_end)!r}).exists():\n    time.sleep(0.01)\n{then}"
        )

    @property
    def starts(self) -> int:
        """How often it was started."""
        return len(self._counter.read_text()) if self._counter.exists() else 0

    def until_started(self) -> None:
        """Waits for its first statement."""
        until(lambda: self.starts > 0, "the cell never started")

    def end(self) -> None:
        """Lets it go on to its end."""
        self._may_end.touch()


def until(condition: Callable[[], Any], what: str) -> None:
    """Waits for a condition; `what` says what is wrong if it never holds."""
    assert wait_for(lambda: bool(condition()), LIMIT_S), what
