"""The panels of `looseleaf top`: which columns each has and which rows; the same on a full screen and for `--once`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from looseleaf.top import model


@dataclass(frozen=True, slots=True)
class Panel:
    """One table. `empty`: what stands there without rows."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows_of: Callable[[Mapping[str, Any]], Sequence[Any]]
    empty: str

    def rows(self, snapshot: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """The cells of each row as texts."""
        return [tuple(map(str, astuple(row))) for row in self.rows_of(snapshot)]


PANELS = (
    Panel("gpus", "GPUs", ("host", "GPU", "device", "state", "session", "execution", "memory of workers"),
          model.gpu_rows, "the pool has no GPU"),
    Panel("queue", "queue", ("#", "session", "priority", "waited", "why"), model.queue_rows, "no run waits"),
    Panel("sessions", "sessions", ("session", "title", "version", "changed", "workers"), model.session_rows,
          "no session is saved"),
    Panel("zygotes", "zygotes", ("host", "pids", "packages", "kernels", "arena"), model.zygote_rows,
          "no host answered"),
    Panel("runs", "last runs", ("execution", "session", "end", "path", "start", "prepare", "run", "save",
          "▒ prepare █ run ░ save"), model.run_rows, "no run has ended"),
)  # fmt: skip
