"""Other people's notebooks show the same through LooseLeaf as on an ordinary kernel with a (virtual) GPU of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import nbformat.v4 as nbf
import pytest
from corpus import Entry, Substitution, corpus_folder, read_entries, survey, what_lacks
from corpus_stand_ins import put
from golden_report import Result
from golden_run import OFFLINE_ENV, NotebookRun
from golden_total import left_to_soak
from test_golden import check

FOLDER = corpus_folder()
ENTRIES = read_entries()
IN_SOAK = left_to_soak(entry.name for entry in ENTRIES)
COMPARED = [
    pytest.param(entry, id=entry.name, marks=[pytest.mark.soak] if entry.name in IN_SOAK else []) for entry in ENTRIES
]

HERE_ONLY = pytest.mark.skipif(FOLDER is None, reason="the corpus is not here: LOOSELEAF_CORPUS names its folder")


@HERE_ONLY
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_corpus_entry_fits_its_notebook_and_the_survey(entry: Entry) -> None:
    assert FOLDER is not None
    found = survey()[entry.name]
    notebook = entry.notebook(FOLDER)
    assert len(notebook.cells) == (entry.cells or found["cells"])
    assert bool(entry.cells) == bool(entry.why)
    changes = entry.substitutions + entry.stand_ins
    assert changes or found["verdict"] == "wholly" or entry.cells <= found["cells_run"]
    assert all(change.why for change in entry.substitutions)


@HERE_ONLY
def test_corpus_survey_knows_every_notebook() -> None:
    assert FOLDER is not None
    assert set(survey()) == {path.stem for path in FOLDER.glob("*.ipynb")}


@pytest.mark.parametrize("wrong", [Substitution("c1", "b", "c", "w"), Substitution("c2", "a", "c", "w")])
def test_corpus_substitution_without_its_text_is_refused(tmp_path: Path, wrong: Substitution) -> None:
    notebook = nbf.new_notebook(cells=[nbf.new_code_cell("a = 1", id="c1"), nbf.new_code_cell("", id="c2")])
    nbformat.write(notebook, str(tmp_path / "n.ipynb"))
    right = Entry("n", substitutions=(Substitution("*", "a =", "d =", "w"),))
    assert [cell.source for cell in right.notebook(tmp_path).cells] == ["d = 1"]
    with pytest.raises(ValueError, match="is not there"):
        Entry("n", substitutions=(wrong,)).notebook(tmp_path)


@HERE_ONLY
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.parametrize("entry", COMPARED)
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
