"""The script that compares whole notebooks with stock nbclient works, once and in small."""

from __future__ import annotations

import json
from pathlib import Path

import batch_wall
import pytest


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_batch_wall_tells_each_notebooks_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in batch_wall.ENV:
        # The script sets them for its children; they are this test's only.
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    batch_wall.main(["--rounds", "1", "--only", "small", "--json", str(tmp_path / "r.json")])
    report = json.loads((tmp_path / "r.json").read_text())
    assert [row["notebook"] for row in report["rows"]] == ["60 small CPU cells", "20 small GPU cells"]
    assert all(row["wall_ratio"] > 0 and row["cpu_ratio"] > 0 for row in report["rows"])
    assert report["rows"][1]["warm_start_ms"] > 0 and len(report["cells"]) == 60 + 22
    assert "60 small CPU cells" in capsys.readouterr().out
