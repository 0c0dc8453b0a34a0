"""What `--resume` goes on from: which cells ran, what they showed, and the versions that were saved between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import nbformat

from looseleaf.batch.cells import is_executed
from looseleaf.errors import PreconditionFailed

RECORD_VERSION: Final = 1
# A save between two cells may take this share of the time since the last one.
SAVE_SHARE: Final = 0.1


@dataclass
class CellDone:
    """A cell that ended well. `source`: a hash of its text. `version`, `execution_id`: of the state saved after it, 0
    and empty if none was."""

    index: int
    source: str
    execution_count: int | None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    version: int = 0
    execution_id: str = ""


@dataclass
class ResumeRecord:
    """A run that has not ended well: one line of JSON for the run and one for each cell, written as they end."""

    path: Path
    session_id: str = ""
    cells: list[CellDone] = field(default_factory=list)

    @classmethod
    def beside(cls, output: Path) -> ResumeRecord:
        """The empty record of the run that writes the notebook `output`."""
        return cls(output.with_name(f".{output.name}.resume"))

    @classmethod
    def read(cls, output: Path) -> ResumeRecord:
        """What is known of the last run of `output`; empty if there was none, it ended well or it is unreadable.

        A line that was cut in two by the end of the run is left out.
        """
        record = cls.beside(output)
        try:
            first, *rest = record.path.read_text(encoding="utf-8").splitlines()
            head = json.loads(first)
            if head["v"] != RECORD_VERSION:
                return record
            session_id = str(head["session_id"])
            for line in rest:
                record.cells.append(CellDone(**json.loads(line)))
        except FileNotFoundError:
            return record
        except (OSError, ValueError, KeyError, TypeError):
            if not record.cells:
                return record
        record.session_id = session_id
        return record

    def begin(self, session_id: str) -> None:
        """Writes the record anew, with the cells that it has. Raises OSError."""
        self.session_id = session_id
        lines = [json.dumps({"v": RECORD_VERSION, "session_id": session_id}), *map(_line, self.cells)]
        temporary = self.path.with_name(f"{self.path.name}.new")
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        temporary.replace(self.path)

    def add(self, done: CellDone) -> None:
        """One more cell has ended well; written only behind `begin`. Raises OSError."""
        self.cells.append(done)
        if not self.session_id:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(done) + "\n")

    def forget(self) -> None:
        """Nothing is left to go on from: the run ended well, or another begins. Raises OSError."""
        self.path.unlink(missing_ok=True)

    def save_points(self, nb: Any) -> list[CellDone]:
        """Cells after which the state was saved, newest first; up to the first cell that was changed since."""
        found: list[CellDone] = []
        for done in self.cells:
            if done.index >= len(nb.cells) or source_hash(nb, done.index) != done.source:
                break
            if done.version:
                found.append(done)
        return found[::-1]

    def count_after(self, last: CellDone) -> int:
        """The execution count that the cell behind `last` gets."""
        counts = (done.execution_count or 0 for done in self.cells if done.index <= last.index)
        return max(counts, default=0) + 1

    def show_again(self, nb: Any, last: CellDone) -> int:
        """Puts what the cells up to `last` have shown into `nb` and forgets the later ones; the next cell's index."""
        self.cells = [done for done in self.cells if done.index <= last.index]
        for done in self.cells:
            nb.cells[done.index].outputs = [nbformat.from_dict(output) for output in done.outputs]  # type: ignore[no-untyped-call]
            nb.cells[done.index].execution_count = done.execution_count
        return last.index + 1


def _line(done: CellDone) -> str:
    return json.dumps(asdict(done), separators=(",", ":"))


def source_hash(nb: Any, index: int) -> str:
    """Of the texts of all code cells up to this one: a cell that was put in between is a change, too."""
    digest = hashlib.sha256()
    for cell in nb.cells[: index + 1]:
        if is_executed(cell):
            digest.update(len(cell.source).to_bytes(8, "big") + cell.source.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def next_save_due(since_s: float, last_save_s: float) -> bool:
    """Whether the state is saved after a cell: `since_s` seconds after the last save, which took `last_save_s`."""
    return last_save_s <= since_s * SAVE_SHARE


def went_on_line(name: str, nb: Any, first_index: int) -> str:
    """What a person is told of a notebook that was to go on."""
    if not first_index:
        return f"looseleaf: {name}: nothing of an earlier run was there to go on from; it ran from its first cell"
    cells = sum(is_executed(cell) for cell in nb.cells[:first_index])
    return f"looseleaf: {name}: went on after its first {cells} code cell{'s' * (cells != 1)}, which ran earlier"


def not_kept_line(name: str, problem: str) -> str:
    """What a person is told of a notebook that stopped and of whose newest cells nothing is kept."""
    return f"looseleaf: {name}: --resume cannot go on from its newest cells: {problem}"


def refuse_without_cluster(records: Sequence[ResumeRecord], embedded: bool) -> None:
    """Raises PreconditionFailed `RESUME_WITHOUT_CLUSTER` if a run is to go on whose cluster is not there."""
    if embedded and any(record.session_id for record in records):
        text = (
            "no cluster is running, and the state to go on from is in one: start it with `looseleaf up`, or run "
            "without --resume from the first cell. Nothing was run"
        )
        raise PreconditionFailed("RESUME_WITHOUT_CLUSTER", text)
