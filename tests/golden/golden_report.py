"""What the golden comparison found: the counts at its end, and the same as JSON."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from golden_compare import CellComparison, Difference

# How many cells of one notebook the summary names.
DIFFERING_SHOWN_MAX = 6
SIDES = {"reference": "stock kernel with the virtual GPU", "plain": "plain stock kernel"}


@dataclass(frozen=True)
class Known:
    """A difference that is as it must be. `row`: how the row of docs/not-preserved.md begins that tells of it."""

    reason: str
    row: str


# (notebook, cell): differences that stay. One that is no longer there fails its notebook.
KNOWN: dict[tuple[str, str], Known] = {
    ("google-jax__Neural_Network_and_Data_Loading", "c007"): Known(
        "jax warns of a fork by a shell line only in the process in which it ran", "Warnings about the process"
    ),
}


@dataclass
class Result:
    """One comparison of a notebook: LooseLeaf against `side`. `group`: where the notebook comes from."""

    group: str
    notebook: str
    side: str
    cells: list[CellComparison]
    # Why the notebook is compared only up to some cell, else empty.
    limited: str = ""

    def problems(self) -> list[str]:
        """What makes the notebook's test fail, in words."""
        found: list[str] = []
        for cell in self.cells:
            if len(found) == DIFFERING_SHOWN_MAX:
                return [*found, f"{self.notebook}: more cells differ"]
            known = KNOWN.get((self.notebook, cell.name))
            if cell.differences and known is None:
                lines = "\n  ".join(map(str, cell.differences[:4]))
                found.append(f"{self.notebook}, cell {cell.name}, against the {SIDES[self.side]}:\n  {lines}")
            if known is not None and not cell.differences:
                found.append(f"{self.notebook}, cell {cell.name}: no longer differs; take it out of KNOWN")
        return found


@dataclass
class Report:
    """All comparisons of one run of the tests."""

    results: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """One more comparison."""
        self.results.append(result)

    def pack(self) -> bytes:
        """All of it for another process; what two sides showed that differs is text there."""
        plain = [replace(result, cells=[_as_text(cell) for cell in result.cells]) for result in self.results]
        return pickle.dumps(plain)

    def unpack(self, packed: bytes) -> None:
        """Adds what another process has packed; the order does not depend on which process was first."""
        self.results += pickle.loads(packed)
        self.results.sort(key=lambda each: (each.group, each.notebook, each.side))

    def cells(self) -> list[CellComparison]:
        """Every cell once: what differs, or needed a rule, in any of its comparisons."""
        found: dict[tuple[str, str], CellComparison] = {}
        for result in self.results:
            for cell in result.cells:
                place = (result.notebook, cell.name)
                before = found.get(place, cell)
                rules = tuple(dict.fromkeys((*before.rules, *cell.rules)))
                found[place] = replace(cell, differences=before.differences or cell.differences, rules=rules)
        return list(found.values())

    def gpu_cells(self) -> int:
        """Cells that ran on a GPU and were compared."""
        return sum(cell.label == "gpu" for cell in self.cells())

    def lines(self) -> list[str]:
        """For people."""
        lines: list[str] = []
        for group in dict.fromkeys(result.group for result in self.results):
            lines += self._group_lines(group)
        cells = self.cells()
        notebooks = {result.notebook for result in self.results}
        lines.append(f"all {len(notebooks)} notebooks, each cell counted once: {_counts(cells)}")
        rules = Counter(name for cell in cells if not cell.differences for name in cell.rules)
        lines += [f"  equal after rule {name!r}: {count} cells" for name, count in rules.most_common()]
        for result in self.results:
            lines += self._differing(result)
        return lines

    def _group_lines(self, group: str) -> list[str]:
        results = [result for result in self.results if result.group == group]
        lines = []
        for side in dict.fromkeys(result.side for result in results):
            chosen = [result for result in results if result.side == side]
            cells = [cell for result in chosen for cell in result.cells]
            lines.append(f"{group}, against the {SIDES[side]}: {len(chosen)} notebooks, {_counts(cells)}")
            lines += [f"  {result.notebook}: {result.limited}" for result in chosen if result.limited]
        return lines

    @staticmethod
    def _differing(result: Result) -> Iterable[str]:
        differing = [cell for cell in result.cells if cell.differences]
        for cell in differing[:DIFFERING_SHOWN_MAX]:
            known = KNOWN.get((result.notebook, cell.name))
            why = f"known: {known.reason}" if known else f"FAULT: {cell.differences[0].what}"
            yield f"  differs: {result.notebook}, cell {cell.name}: {why}"
        if len(differing) > DIFFERING_SHOWN_MAX:
            yield f"  differs: {result.notebook}, {len(differing) - DIFFERING_SHOWN_MAX} more cells"

    def write(self, path: Path, corpus: Mapping[str, Any]) -> None:
        """The same as JSON, with the survey of the corpus."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**self._plain(), "corpus": corpus}, indent=1) + "\n", encoding="utf-8")

    def _plain(self) -> dict[str, Any]:
        return {
            "cells": len(self.cells()),
            "gpu_cells": self.gpu_cells(),
            "results": [
                {
                    **{key: value for key, value in asdict(result).items() if key != "cells"},
                    "cells": [
                        {"name": cell.name, "label": cell.label, "rules": list(cell.rules),
                         "differences": [difference.what for difference in cell.differences]}
                        for cell in result.cells
                    ],
                }
                for result in self.results
            ],
            "known": [
                {"notebook": notebook, "cell": cell, **asdict(known)} for (notebook, cell), known in KNOWN.items()
            ],
        }  # fmt: skip


def _as_text(cell: CellComparison) -> CellComparison:
    shown = tuple(Difference(each.what, repr(each.reference), repr(each.found)) for each in cell.differences)
    return replace(cell, differences=shown)


# Where a run of pytest keeps its report.
REPORT = pytest.StashKey[Report]()


def _counts(cells: list[CellComparison]) -> str:
    gpu = sum(cell.label == "gpu" for cell in cells)
    plain = sum(not cell.differences and not cell.rules for cell in cells)
    masked = sum(not cell.differences and bool(cell.rules) for cell in cells)
    return (
        f"{len(cells)} cells compared ({gpu} on a GPU): {plain} equal, {masked} equal after rules, "
        f"{len(cells) - plain - masked} differing"
    )
