"""`looseleaf simulate`: one object a line, a table for people, pictures, and words for what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looseleaf.cli import exits
from looseleaf.cli.main import main

QUICK = ["simulate", "--seeds", "1", "--hours", "0.5"]


def test_json_is_one_object_for_each_policy_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    args = [*QUICK, "-n", "4", "-n", "8", "-p", "pinned", "-p", "looseleaf", "--json"]
    assert main(args) == exits.DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["sessions"], one["policy"]) for one in found] == [
        (4, "pinned"), (4, "looseleaf"), (8, "pinned"), (8, "looseleaf")]
    assert {len(one) for one in found} == {14}


@pytest.mark.slow
def test_all_policies_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "-n", "4", "-p", "all"]) == exits.DONE
    out = capsys.readouterr().out
    assert all(name in out for name in ("looseleaf", "pinned", "notebookos", "modal", "naive", "saved to modal"))


def test_limits_of_the_scheduler_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = []
    for limits in ((), ("--limit", "hosts_min=3", "--limit", "prepare_stage_max=host_ready")):
        assert main([*QUICK, "-n", "4", "--json", *limits]) == exits.DONE
        gpus.append(json.loads(capsys.readouterr().out)["gpus_provisioned"])
    assert gpus == [8.0, 24.0]


@pytest.mark.slow
@pytest.mark.leaks_ok("matplotlib keeps the font files open that it drew with")
def test_pictures_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    assert main([*QUICK, "-n", "4", "-p", "pinned", "-p", "naive", "--plot", str(tmp_path / "plots")]) == exits.DONE
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "cost.svg", "gpu-seconds.svg", "starts.svg"]
    assert all("<svg" in path.read_text()[:1000] for path in (tmp_path / "plots").iterdir())


def test_recorded_runs_have_their_own_number_of_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "mine.jsonl"
    runs = [{"session": name, "run_s": 60.0 * i, "duration_s": 5.0, "gpu": True} for name in "ab" for i in range(5)]
    log.write_text("\n".join(json.dumps(run) for run in runs))
    assert main([*QUICK, "--workload", str(log), "--json"]) == exits.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["sessions"], found["workload"]) == (2, "mine")


@pytest.mark.parametrize(("args", "reason"), [
    (["--workload", "w3"], "WORKLOAD_UNKNOWN"), (["--policy", "luck"], "POLICY_UNKNOWN"),
    (["--without", "luck"], "ABLATION_UNKNOWN"), (["--limit", "luck=1"], "LIMIT_UNKNOWN"),
])  # fmt: skip
def test_word_that_nobody_knows_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], args: list[str], reason: str
) -> None:
    assert main([*QUICK, "-n", "2", *args]) == exits.USAGE
    assert reason in capsys.readouterr().err
