"""The kernel's log of executed cells, how much of it the frontend has, and which runs led to which version."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from looseleaf.ids import CellId
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.history_line import FORGET_ALL
from looseleaf.recipe.lessons import Observation
from looseleaf.recipe.log import CellRun, ExecutionLog

# What one request to the frontend carries.
RUNS_PER_REQUEST_MAX: Final = 500
REQUEST_CHARS_MAX: Final = 4_000_000
# Versions whose runs are known; of older ones a checkout knows the variables, not the texts that made them.
VERSIONS_KNOWN_MAX: Final = 10_000
# Runs that a checkout repeats in the log, the newest; each costs the frontend a moment of analysis.
REPEATED_RUNS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class _Led:
    """A run and the one before it, among those that led to a state."""

    run: CellRun
    before: _Led | None


def _back(led: _Led | None) -> Iterator[_Led]:
    while led is not None:
        yield led
        led = led.before


class RunLog:
    """Safe for the main and the control thread. Sequences start at 1 and have no gaps."""

    def __init__(self) -> None:
        self._executed = ExecutionLog()
        self._runs: list[CellRun] = []
        # The runs that led to the present state, and to each version.
        self._led: _Led | None = None
        self._versions: dict[int, _Led | None] = {}
        # The runs that each version was made after; what ran later and changed nothing led to it, too.
        self._made: dict[int, _Led | None] = {}
        # What people are told of versions that no run has made.
        self._explained: dict[int, str] = {}
        self._acknowledged = 0
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """Runs so far."""
        return len(self._runs)

    @property
    def executed(self) -> ExecutionLog:
        """All runs so far, as recipes are derived from them. Main thread only.

        A run's text is followed at the first look, which need not be before its reply.
        """
        for run in self._runs[self._executed.length :]:
            self._executed.record(run)
        return self._executed

    def add(self, cell_id: CellId, source: str, ok: bool, observed: Observation | None = None) -> None:
        """One more run has ended; `observed`: what it showed of the device."""
        self._led = _Led(self._append(cell_id, source, ok, observed), self._led)

    def _append(self, cell_id: str, source: str, ok: bool, observed: Observation | None = None) -> CellRun:
        run = CellRun(len(self._runs) + 1, cell_id, source, ok, observed)
        with self._lock:
            self._runs.append(run)
        return run

    def saved(self, version: int) -> None:
        """The state that the runs so far have led to is `version`."""
        self._versions.pop(version, None)
        self._versions[version] = self._led
        self._made.setdefault(version, self._led)
        if len(self._versions) > VERSIONS_KNOWN_MAX:
            oldest = next(iter(self._versions))
            del self._versions[oldest], self._made[oldest]
            self._explained.pop(oldest, None)

    def explain(self, version: int, text: str) -> None:
        """`version` is one that no run has made: `cells_of` gives `text` for it."""
        if version in self._versions:
            self._explained[version] = text

    def check_out(self, source: int, version: int) -> None:
        """The state is that of the version `source` again, as `version`: the log begins anew with what led to it.

        So definitions are those of then, here and in the frontend; of a version whose runs are not known, none.
        """
        led = self._versions.get(source)
        runs = [entry.run for entry, _ in zip(_back(led), range(REPEATED_RUNS_MAX), strict=False)]
        self._append("", FORGET_ALL, ok=True)
        for run in reversed(runs):
            # Files that cells wrote did not go back.
            if not analyze_cell(run.source).files:
                self._append(run.cell_id, run.source, run.ok)
        self._led = led
        self.saved(version)

    def cells_of(self, version: int) -> list[str]:
        """Texts of the cells that made it, oldest first; empty where that is not known.

        Those are the ones since the version before, or the one in which it was made, as by a checkout.
        """
        if version not in self._versions:
            return []
        if version in self._explained:
            return [self._explained[version]]
        known = {id(self._versions[number]) for number in self._versions if number < version}
        made = self._since(known, self._made[version])
        return made or self._since(known, self._versions[version])[:1]

    @staticmethod
    def _since(known: Container[int], led: _Led | None) -> list[str]:
        found: list[str] = []
        for entry in _back(led):
            if id(entry) in known:
                break
            found.append(entry.run.source)
        return found[::-1]

    def unsent(self) -> list[dict[str, Any]]:
        """The next runs that the frontend lacks, as the protocol's maps; a bounded part of them."""
        with self._lock:
            part: list[dict[str, Any]] = []
            chars = 0
            for run in self._runs[self._acknowledged : self._acknowledged + RUNS_PER_REQUEST_MAX]:
                chars += len(run.source)
                if part and chars > REQUEST_CHARS_MAX:
                    break
                part.append(_told(run))
            return part

    def acknowledged(self, next_sequence: int) -> None:
        """The frontend expects `next_sequence` next; a lower one than before means that it lost its memory."""
        with self._lock:
            self._acknowledged = max(0, min(next_sequence - 1, len(self._runs)))


def _told(run: CellRun) -> dict[str, Any]:
    told = {"sequence": run.sequence, "cell_id": run.cell_id, "source": run.source, "ok": run.ok}
    return told if run.observed is None else {**told, "observed": asdict(run.observed)}
