"""Recorded work as a workload: JSON lines, one run of a cell each (docs/simulate.md has the format).

A session replays one recorded session: its gaps, edit windows and run times, in a closed loop; at the end it begins
again. Sessions beyond the recorded ones replay the same, each from another cell on.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.sim.model import Mechanism, Workload
from looseleaf.sim.workload import Cell, lognormal
from looseleaf.units import GIB

# A longer log than this is refused: it is read into memory.
RECORDS_MAX: Final = 5_000_000
_KEYS: Final = frozenset({
    "session", "edit_s", "run_s", "began_s", "duration_s", "gpu", "abandoned", "closure_bytes", "gpu_count", "path",
    "prepare_s"})
_NEEDED: Final = frozenset({"session", "run_s", "duration_s", "gpu"})


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run. Times are seconds on the log's own clock; None: not recorded, drawn from the model instead.

    `began_s`: the first statement, None: at `run_s`. `path`: what the cell found ready. `prepare_s`: of a new worker.
    """

    session: str
    run_s: float
    duration_s: float
    gpu: bool
    edit_s: float | None = None
    abandoned: bool = False
    closure_bytes: int | None = None
    gpu_count: int = 1
    prepare_s: float | None = None
    began_s: float | None = None
    path: str = ""

    @property
    def ended_s(self) -> float:
        """The cell's end; what it waited before its start is no thinking."""
        return (self.run_s if self.began_s is None else self.began_s) + self.duration_s


class ReplayedCells:
    """A CellStream of one recorded session, from its cell `begin` on."""

    def __init__(
        self, records: Sequence[Recorded], begin: int, workload: Workload, mechanism: Mechanism, drawn: random.Random,
    ) -> None:
        self._records = records
        self._position = begin % len(records)
        self._workload = workload
        self._mechanism = mechanism
        self._random = drawn
        self.gpus = max(record.gpu_count for record in records)

    def next(self, now_s: float) -> Cell:
        """See CellStream."""
        workload, mechanism, drawn = self._workload, self._mechanism, self._random
        position = self._position
        self._position = (position + 1) % len(self._records)
        record = self._records[position]
        # What came before the first recorded cell is not known: the model's usual gap.
        gap_s = workload.gap_min_s + workload.gap_extra_s
        if position:
            gap_s = max(0.0, record.run_s - self._records[position - 1].ended_s)
        edit_s = lognormal(drawn, workload.edit_median_s, workload.edit_sigma, math.inf)
        closure_bytes = int(lognormal(
            drawn, workload.closure_median_gib * GIB, workload.closure_sigma, workload.closure_max_gib * GIB))
        prepare_s = lognormal(drawn, mechanism.prepare_median_s, mechanism.prepare_sigma, mechanism.prepare_max_s)
        if record.edit_s is not None:
            edit_s = record.run_s - record.edit_s
        return Cell(
            gap_s, min(max(0.0, edit_s), gap_s), record.gpu, record.duration_s, record.abandoned and not record.gpu,
            record.closure_bytes if record.closure_bytes is not None else closure_bytes, record.gpu_count,
            record.prepare_s if record.prepare_s is not None else prepare_s, drawn.random(),
        )


def read_records(path: Path) -> dict[str, list[Recorded]]:
    """The runs of each session in order. Raises InvalidArgument `WORKLOAD_MALFORMED`, naming the line."""
    found: dict[str, list[Recorded]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if number > RECORDS_MAX:
                raise _malformed(path, number, f"more than {RECORDS_MAX} runs")
            if line.strip():
                record = _record(path, number, line)
                found.setdefault(record.session, []).append(record)
    if not found:
        raise _malformed(path, 1, "no runs")
    for records in found.values():
        records.sort(key=lambda record: record.run_s)
    return found


def replayed_streams(
    recorded: Mapping[str, Sequence[Recorded]], workload: Workload, mechanism: Mechanism, sessions: int, seed: int,
) -> list[ReplayedCells]:
    """One stream for each of `sessions`."""
    names = sorted(recorded)
    streams = []
    for index in range(sessions):
        records, turn = recorded[names[index % len(names)]], index // len(names)
        drawn = random.Random(f"replay/{seed}/{index}")
        begin = drawn.randrange(len(records)) if turn else 0
        streams.append(ReplayedCells(records, begin, workload, mechanism, drawn))
    return streams


def _record(path: Path, number: int, line: str) -> Recorded:
    try:
        values: Any = json.loads(line)
    except ValueError as error:
        raise _malformed(path, number, f"no JSON ({error})") from error
    if not isinstance(values, dict) or not _NEEDED <= values.keys() <= _KEYS:
        raise _malformed(path, number, f"an object with {', '.join(sorted(_NEEDED))} and nothing but"
                         f" {', '.join(sorted(_KEYS))} is expected")  # fmt: skip
    for key in ("run_s", "began_s", "duration_s", "edit_s", "closure_bytes", "gpu_count", "prepare_s"):
        value = values.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _malformed(path, number, f"{key} is no number")
        if value < 0 and key not in ("run_s", "began_s", "edit_s"):
            raise _malformed(path, number, f"{key} is negative")
    if not all(isinstance(values.get(key, ""), str) for key in ("session", "path")) or not all(
            isinstance(values.get(key, False), bool) for key in ("gpu", "abandoned")):
        raise _malformed(path, number, "session or path is no text, or gpu or abandoned neither true nor false")
    if values.get("path", "cold") != "cold":
        # Of a worker that was there only what was left to do is told, which is no whole preparation.
        values.pop("prepare_s", None)
    if values.get("gpu_count", 1) not in range(1, 65):
        raise _malformed(path, number, "gpu_count is none of 1 to 64")
    return Recorded(**values)


def _malformed(path: Path, number: int, why: str) -> InvalidArgument:
    return InvalidArgument("WORKLOAD_MALFORMED", f"{path.name}, line {number}: {why}.", line=number)
