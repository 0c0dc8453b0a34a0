"""Real notebooks, where they are at hand beside the checkout or under LOOSELEAF_CORPUS; skipped elsewhere."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from looseleaf.recipe import CellRun, ExecutionLog, analyze, derive_recipe

CORPUS = Path(os.environ.get("LOOSELEAF_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
# On the reference machine p99 is about 10 ms; the target is 50 ms on an idle one.
ANALYSIS_P99_S_MAX = 0.25

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real notebooks is not on this machine")


def code_cells(path: Path) -> Iterator[tuple[str, str]]:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = cell["source"]
            yield cell.get("id", ""), source if isinstance(source, str) else "".join(source)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.soak])])
def test_corpus_every_cell_has_a_recipe_in_time(every: int, record_property: pytest.RecordProperty) -> None:
    seconds, partial, gpu = [], 0, 0
    notebooks = sorted(CORPUS.glob("*.ipynb"))[::every]
    for path in notebooks:
        log = ExecutionLog()
        for sequence, (cell_id, source) in enumerate(code_cells(path), start=1):
            start = time.perf_counter()
            recipe = derive_recipe(source, cell_id=cell_id, log=log, headers=None, version=0, editing=True)
            seconds.append(time.perf_counter() - start)
            partial += recipe.partial
            gpu += recipe.label == "gpu"
            assert set(recipe.names) <= set(log.definitions)
            log.record(CellRun(sequence, cell_id, source, ok=True))
    seconds.sort()
    figures = {
        "notebooks": len(notebooks),
        "cells": len(seconds),
        "partial": partial,
        "gpu": gpu,
        "median_ms": round(1e3 * statistics.median(seconds), 2),
        "p99_ms": round(1e3 * seconds[int(len(seconds) * 0.99)], 2),
        "max_ms": round(1e3 * seconds[-1], 2),
    }
    print(figures)
    record_property("figures", figures)
    assert figures["notebooks"] >= 78 // every
    assert figures["p99_ms"] < 1e3 * ANALYSIS_P99_S_MAX


def test_corpus_truth_needs_are_all_found(record_property: pytest.RecordProperty) -> None:
    found = missing = extra = right = cells = 0
    wrong: list[tuple[str, str, str]] = []
    for path in sorted((CORPUS / "truth-examples").glob("*.json")):
        truth = json.loads(path.read_text(encoding="utf-8"))
        sources = dict(code_cells(CORPUS / truth["notebook"]))
        log = ExecutionLog()
        for sequence, cell in enumerate(truth["cells"], start=1):
            source = sources[cell["id"]]
            analysis = analyze(source, cell_id=cell["id"], log=log, headers=None, version=0)
            needs, named = set(cell["needs"]), set(analysis.state_names)
            found += len(needs & named)
            missing += len(needs - named)
            extra += len(named - needs - set(cell["needs_types"]))
            assert set(cell["defines"]) <= set(analysis.recipe.defines), cell["id"]
            cells += 1
            if (analysis.recipe.label == "gpu") in cell["gpu_accept"]:
                right += 1
            else:
                wrong.append((truth["notebook"], cell["id"], analysis.recipe.reason))
            log.record(CellRun(sequence, cell["id"], source, ok=True))
    figures = {
        "needs_recall": found / (found + missing),
        "needs_precision": found / (found + extra),
        "label_accuracy": right / cells,
    }
    print(figures, wrong)
    record_property("figures", figures)
    assert figures["needs_recall"] == 1.0
    assert figures["needs_precision"] >= 0.95
    assert figures["label_accuracy"] >= 0.95
