"""Other people's notebooks show the same through LooseLeaf as on an ordinary kernel with a (virtual) GPU of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from corpus import Entry, corpus_folder, read_entries, what_lacks
from corpus_stand_ins import put
from golden_report import Result
from golden_run import OFFLINE_ENV, NotebookRun
from test_golden import check

FOLDER = corpus_folder()
ENTRIES = read_entries()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.skipif(FOLDER is None, reason="the corpus is not here: LOOSELEAF_CORPUS names its folder")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_golden_corpus_notebook_shows_what_an_ordinary_kernel_shows(
    entry: Entry, run_both: Callable[..., dict[str, NotebookRun]], report: Callable[[Result], None]
) -> None:
    assert FOLDER is not None
    sides = run_both(
        entry.notebook(FOLDER), plain=entry.plain, prepare=lambda folder: put(entry.stand_ins, folder), env=OFFLINE_ENV
    )
    lacking = {cell.name: what_lacks(cell) for cell in sides["reference"].cells if what_lacks(cell)}
    assert lacking == {}, "it does not run offline"
    check("corpus", entry.name, sides, report, limited=entry.why)
