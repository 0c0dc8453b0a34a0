"""The script of `make gpu-check`, as far as a machine without a GPU goes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_check

    yield gpu_check
    for name in ("gpu_check", "gpu_memory", "gpu_attach", "machine"):
        sys.modules.pop(name, None)


def test_gpu_check_dry_run_does_the_parts_that_work_on_host_memory(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_memory

    monkeypatch.setattr(gpu_memory, "CASES", 100)
    path = tmp_path / "out" / "figures.json"
    assert gpu_check.main(["--dry-run", "--json", str(path)]) == 0, capsys.readouterr().out
    found = {part["name"]: part for part in json.loads(path.read_text())["parts"]}
    assert found["fingerprints equal the host's"]["figures"] == {"cases": 100}
    assert found["every write is seen"]["figures"]["DLPack"] > 10
    skipped = [name for name, part in found.items() if part["outcome"] == "skipped"]
    assert len(skipped) == len(found) - 2
    assert all(found[name]["reason"] == "needs a GPU" for name in skipped)


def test_gpu_check_failing_part_stops_nothing_and_fails_the_run(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(device: str) -> dict[str, Any]:
        raise RuntimeError("broken part")

    chosen = [
        gpu_check.Part("first", breaks, 1, True), gpu_check.Part("second", lambda device: {"figure": 1}, 1, True)
    ]  # fmt: skip
    path = tmp_path / "figures.json"
    assert gpu_check.main(["--dry-run", "--json", str(path)], chosen) == 1
    first, second = json.loads(path.read_text())["parts"]
    assert (first["outcome"], second["outcome"], second["figures"]) == ("failed", "ok", {"figure": 1})
    assert "RuntimeError: broken part" in first["reason"]
    assert "test_gpu_check.py" in first["traceback"]
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert "second: figure 1" in printed


def test_gpu_check_part_that_takes_all_the_time_is_cut_off(gpu_check: Any) -> None:
    read, write = os.pipe()

    def blocks(device: str) -> dict[str, Any]:
        return {"read": os.read(read, 1)}

    found = gpu_check.run_part(gpu_check.Part("long", blocks, 0.1, True), "cpu", 0.05)
    os.close(read)
    os.close(write)
    assert (found["outcome"], "cut off" in found["reason"]) == ("failed", True)
    # What it replaced is as it was.
    assert gpu_check.run_part(gpu_check.Part("next", lambda device: {}, 1, True), "cpu", 9.0)["outcome"] == "ok"


def test_gpu_check_has_every_part_and_they_fit_its_time(gpu_check: Any) -> None:
    parts = gpu_check.parts()
    wanted = ("equal", "every write", "speed", "dirty set", "pinning", "attach", "session", "tests of real devices")
    assert [part for word, part in zip(wanted, parts, strict=True) if word not in part.name] == []
    assert sum(part.share_s for part in parts) <= gpu_check.BUDGET_S <= 480


def test_gpu_check_part_without_time_left_is_skipped(gpu_check: Any) -> None:
    part = gpu_check.Part("long", lambda device: pytest.fail("it ran"), 100, True)
    found = gpu_check.run_part(part, "cpu", 20.0)
    assert found["outcome"] == "skipped"
    assert "20 s of the time are left" in found["reason"]
