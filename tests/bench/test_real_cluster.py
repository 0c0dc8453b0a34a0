"""The script of the real cluster: its notebooks, its replay, and in small the whole of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import real_cluster

HELD_BY_STARTS_S_MAX = 15.0


def test_made_notebooks_are_programs_that_differ_and_are_the_same_each_time() -> None:
    notebooks = [[cell.source for cell in real_cluster.made_notebook(number, 3, seed=1).cells] for number in range(4)]
    for sources in notebooks:
        assert len(sources) == 1 + 2 * 3
        for source in sources:
            compile(source, "cell", "exec")
    assert len({"\n".join(sources) for sources in notebooks}) == 4
    assert notebooks[2] == [cell.source for cell in real_cluster.made_notebook(2, 3, seed=1).cells]
    for number in range(50):
        thinks_s = real_cluster.think_s(number, seed=1)
        assert real_cluster.THINK_MIN_S <= thinks_s <= real_cluster.THINK_MAX_S


def test_log_is_replayed_once_and_held_at_least_for_what_its_cells_ran(tmp_path: Path) -> None:
    log, report = tmp_path / "runs.jsonl", tmp_path / "report.json"
    cells = [
        {
            "session": f"s{session}", "run_s": 20.0 * cell + session, "edit_s": 20.0 * cell + session - 8.0,
            "duration_s": 4.0, "gpu": True, "closure_bytes": 1_000_000, "prepare_s": 0.5,
        }
        for session in range(5) for cell in range(1, 5)
    ]  # fmt: skip
    log.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    report.write_text(json.dumps({"cells": []}))
    compared = real_cluster.replay(log, report, hosts=2, gpus=2, held_s=100.0)
    assert (compared.cells, compared.simulated_cells) == (20, 20)
    assert 20 * 4.0 <= compared.simulated_s <= 20 * 4.0 + HELD_BY_STARTS_S_MAX
    assert compared.difference == pytest.approx(compared.simulated_s / 100.0 - 1.0)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_small_run_of_the_whole_is_played_replayed_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*real_cluster.ENV, "LOOSELEAF_SCHEDULER_RUN_LOG"):
        # The script sets them for its children; they are this test's only.
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", '["torch"]')
    arguments = ["--notebooks", "2", "--hosts", "1", "--cells", "2", "--pace", "0.1", "--folder", str(tmp_path)]
    kept = str(tmp_path / "kept")
    figures = real_cluster.main([*arguments, "--json", str(tmp_path / "figures.json"), "--keep", kept])
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["report.json", "runs.jsonl"]
    assert figures.failures == [] and figures.totals["gpu_cells"] == 4
    assert figures.totals["gpu_s_held"] > 0 and figures.pinned_s > 0
    assert figures.replay is not None and figures.replay.cells == figures.replay.simulated_cells == 4
    assert json.loads((tmp_path / "figures.json").read_text())["replay"]["cells"] == 4
    assert "GPU-seconds held" in capsys.readouterr().out
