"""What is compared, and whether that was enough."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from corpus import corpus_folder, read_entries
from golden_report import Report

HERE = Path(__file__).parent
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("*.ipynb"))
NOTEBOOKS = sorted((HERE / "notebooks").glob("*.py"))
GPU_CELLS_MIN = 150
OWN_MIN = 20
CORPUS_MIN = 10


def shortfalls(report: Report) -> list[str]:
    """Why a whole run has not compared enough, in words; nothing if some of our notebooks were not asked for."""
    compared = {result.notebook for result in report.results}
    if {path.stem for path in (*EXAMPLES, *NOTEBOOKS)} - compared:
        return []
    corpus = None if corpus_folder() is None else {entry.name for entry in read_entries()}
    return lacking(len(NOTEBOOKS), report.gpu_cells(), corpus, compared)


def lacking(own: int, gpu_cells: int, corpus: Collection[str] | None, compared: Collection[str]) -> list[str]:
    """The same of counts; `corpus`: the notebooks of other people that are listed, None if they are not here."""
    found = []
    if own < OWN_MIN:
        found.append(f"{own} notebooks of our own are fewer than {OWN_MIN}")
    if gpu_cells < GPU_CELLS_MIN:
        found.append(f"{gpu_cells} cells on a GPU are fewer than {GPU_CELLS_MIN}")
    if corpus is not None and len(corpus) < CORPUS_MIN:
        found.append(f"{len(corpus)} listed notebooks of the corpus are fewer than {CORPUS_MIN}")
    missing = sorted(set(corpus or ()) - set(compared))
    if missing:
        found.append(f"{len(missing)} listed notebooks of the corpus were not compared: {', '.join(missing)}")
    return found
