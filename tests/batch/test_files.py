"""Which files a batch run reads and writes, and what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest
from batch_fixtures import write_notebook_of

from looseleaf.batch.files import check_output, plan_jobs, read_notebook, write_notebook, write_text
from looseleaf.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "NOTEBOOK_MISSING"), ("not json", "NOTEBOOK_UNREADABLE"), ("[1]", "NOTEBOOK_UNREADABLE"),
        ('{"cells": 5}', "NOTEBOOK_UNREADABLE"), ('{"nbformat": 4, "nbformat_minor": 5}', "NOTEBOOK_UNREADABLE"),
        ("\xff", "NOTEBOOK_UNREADABLE"),
    ],
)  # fmt: skip
def test_read_notebook_bad_file_is_refused_by_name(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "n.ipynb"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidArgument) as caught:
        read_notebook(path)
    assert caught.value.reason == reason and "n.ipynb" in caught.value.message


def test_read_notebook_folder_is_refused_with_the_way_to_name_its_notebooks(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"NOTEBOOK_UNREADABLE: .*/\*\.ipynb"):
        read_notebook(tmp_path)


def test_check_output_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    check_output(tmp_path / "new.ipynb")
    for path in (tmp_path, tmp_path / "absent" / "x.ipynb"):
        with pytest.raises(InvalidArgument, match="OUTPUT_UNWRITABLE"):
            check_output(path)


def test_written_files_can_be_read_again(make_notebook: Any, tmp_path: Path) -> None:
    nb = make_notebook("%%gpu\n6 * 7")
    nb.cells[0].outputs = [nbf.new_output("execute_result", {"text/plain": "42"}, execution_count=1)]
    write_notebook(nb, tmp_path / "out.ipynb")
    write_text(tmp_path / "r.txt", "text")
    assert read_notebook(tmp_path / "out.ipynb").cells[0].outputs[0]["data"]["text/plain"] == "42"
    assert (tmp_path / "out.ipynb").read_text().endswith("}\n") and (tmp_path / "r.txt").read_text() == "text\n"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_plan_one_notebook_goes_to_a_file_or_into_a_folder(tmp_path: Path) -> None:
    source = write_notebook_of(tmp_path / "a.ipynb", "1")
    (tmp_path / "out").mkdir()
    assert plan_jobs([source], tmp_path / "b.ipynb")[0].output == tmp_path / "b.ipynb"
    assert plan_jobs([source], tmp_path / "out")[0].output == tmp_path / "out" / "a.ipynb"
    # In its own place: what people do with nbconvert --inplace.
    assert plan_jobs([source], source)[0].output == source


def test_plan_several_notebooks_go_into_a_folder_that_is_made(tmp_path: Path) -> None:
    sources = [write_notebook_of(tmp_path / f"{name}.ipynb", "1") for name in "ab"]
    jobs = plan_jobs(sources, tmp_path / "out")
    assert [job.output for job in jobs] == [tmp_path / "out" / "a.ipynb", tmp_path / "out" / "b.ipynb"]
    assert [job.folder for job in jobs] == [tmp_path, tmp_path] and (tmp_path / "out").is_dir()


@pytest.mark.parametrize(
    ("sources", "output", "others", "reason"),
    [
        (["a", "sub/a"], "out", [], "OUTPUT_DUPLICATE"),
        (["a", "a"], "out", [], "OUTPUT_DUPLICATE"),
        (["a"], "b.ipynb", ["b.ipynb"], "OUTPUT_DUPLICATE"),
        (["a"], "b.ipynb", ["sub/../b.ipynb"], "OUTPUT_DUPLICATE"),
        (["a", "b"], "a.ipynb", [], "OUTPUT_UNWRITABLE"),
        (["a", "b"], "no/out", [], "OUTPUT_UNWRITABLE"),
        (["a"], "b.ipynb", ["sub"], "OUTPUT_UNWRITABLE"),
        (["a"], "c.ipynb", ["a.ipynb"], "OUTPUT_UNWRITABLE"),
        (["a", "b"], "out", ["sub/../b.ipynb"], "OUTPUT_UNWRITABLE"),
        (["a"], ".", [], "OUTPUT_UNWRITABLE"),
        (["b", "sub/a"], "sub", [], "OUTPUT_UNWRITABLE"),
        (["a", "absent"], "out", [], "NOTEBOOK_MISSING"),
        (["a", "sub"], "out", [], "NOTEBOOK_MISSING"),
        (["a"] * 10_001, "out", [], "TOO_MANY_NOTEBOOKS"),
    ],
)
def test_plan_what_cannot_be_is_refused_and_nothing_is_made(
    tmp_path: Path, sources: list[str], output: str, others: list[str], reason: str
) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a", "b", "sub/a"):
        write_notebook_of(tmp_path / f"{name}.ipynb", "1")
    with pytest.raises(InvalidArgument, match=reason):
        plan_jobs(
            [tmp_path / f"{name}.ipynb" for name in sources], tmp_path / output, [tmp_path / name for name in others]
        )
    assert not (tmp_path / "out").exists()
