"""The pages build without a warning, links into them find their anchors, what they show is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from looseleaf.error_pages import page_of

ROOT = Path(__file__).resolve().parents[1]
PICTURE_BYTES_MAX = 100_000
REASON = re.compile(r"[A-Z][A-Z0-9_]+")


def test_example_is_shown_as_it_was_run_from_first_to_last_cell() -> None:
    notebook = nbformat.read(ROOT / "docs" / "example.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    (explained,) = [cell for cell in cells if cell.source == "%looseleaf explain"]
    text = "".join(output.text for output in explained.outputs)
    # One line for each earlier cell; some of them have borrowed a GPU.
    assert len(text.splitlines()) == explained.execution_count and " gpu " in text


def test_pictures_are_there_small_and_told_in_words() -> None:
    shown = set()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for words, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            path = page.parent / target
            assert len(words) > 20 and path.stat().st_size <= PICTURE_BYTES_MAX, f"{page.name}: {target}"
            shown.add(path.name)
    assert shown == {path.name for path in (ROOT / "docs" / "images").iterdir()}


@pytest.mark.slow
def test_pages_build_without_a_warning_and_every_reason_is_an_anchor(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the package sphinx is not installed")
    options = ["-q", "-W", "--keep-going", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert built.returncode == 0, built.stderr
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    reasons = {word for word in re.findall(r"`([A-Z0-9_]+)`", text) if REASON.fullmatch(word)}
    anchors = set(re.findall(r'id="([A-Z0-9_]+)"', (tmp_path / "errors.html").read_text(encoding="utf-8")))
    assert len(reasons) > 100 and reasons - anchors == set()
    assert page_of("NO_CLUSTER", {"LOOSELEAF_DOCS_URL": str(tmp_path)}) == f"{tmp_path}/errors.html#NO_CLUSTER"
