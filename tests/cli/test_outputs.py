"""`looseleaf outputs` over a journal as kernels write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.main import main
from looseleaf.kernel.journal_files import journal_root
from looseleaf.kernel.journal_reader import executions_of, outputs_of

SESSION = "s-0123456789abcdef0123456789abcdef"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the journal of two cells, of which the second still runs."""
    folder = journal_root(tmp_path / "run") / SESSION
    folder.mkdir(parents=True)

    def part(sequence: int, *records: dict[str, Any]) -> None:
        lines = [json.dumps({"n": number, **record}) for number, record in enumerate(records)]
        (folder / f"{sequence:06}.0").write_text("\n".join(lines) + "\n")

    def begin(count: int) -> dict[str, Any]:
        cell = {"cell_id": f"id{count}", "line": "x = 1", "title": "a.ipynb"}
        return {"t": "begin", "count": count, "unix_ms": 1000, **cell}

    stream = {"t": "stream", "content": {"name": "stdout", "text": "half [red]way[/red]\n"}}
    part(1, begin(1), stream, {"t": "end", "status": "ok"})
    part(2, begin(2), stream)
    return tmp_path


def said(capsys: Any, data: Path, *words: str, code: int = 0) -> str:
    assert main(["outputs", *words, "--data", str(data)]) == code
    out, err = capsys.readouterr()
    return str(out + err)


def test_outputs_of_a_cell_by_number_and_id_also_while_it_runs(capsys: Any, data: Path) -> None:
    assert said(capsys, data, "1") == said(capsys, data, "id2", "--session", SESSION) == "half [red]way[/red]\n"
    found = json.loads(said(capsys, data, "2", "--json"))
    assert (found["session_id"], found["count"], found["status"]) == (SESSION, 2, "")
    assert found["outputs"] == outputs_of(journal_root(data / "run"), SESSION, 2) != []
    assert "OUTPUTS_UNKNOWN" in said(capsys, data, "9", code=3)


def test_sessions_and_cells_are_listed_newest_first(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert json.loads(said(capsys, data, "--json"))[0] | {"newest_unix_ms": 0} == {
        "session_id": SESSION, "title": "a.ipynb", "executions": 2, "newest_unix_ms": 0,
    }  # fmt: skip
    assert "a.ipynb" in said(capsys, data)
    cells = json.loads(said(capsys, data, "--session", SESSION, "--json"))
    assert [cell["count"] for cell in cells] == [2, 1] == [
        entry.count for entry in executions_of(journal_root(data / "run"), SESSION)
    ]
    shown = said(capsys, data, "--session", SESSION, "-n", "1")
    assert "[2]" in shown and "not yet, or with its kernel" in shown and "[1]" not in shown
    assert "no outputs are kept here" in said(capsys, tmp_path / "other")
