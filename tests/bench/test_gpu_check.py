"""The script of `make gpu-check`, as far as a machine without a GPU goes."""

from __future__ import annotations

import importlib
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


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose parts end in every way."""
    (tmp_path / "planted_parts.py").write_text("""
import os, signal, time
def works(device):
    print("said on the way")
    return {"figure": 1}
def breaks(device):
    raise RuntimeError("broken part")
def dies(device):
    os.abort()
def hangs(device):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    if os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_gpu_check_dry_run_does_the_parts_that_work_on_host_memory(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_memory

    monkeypatch.setattr(gpu_memory, "CASES", 100)
    found = {part["name"]: part for part in gpu_check.run_all(gpu_check.PARTS, "cpu", 480.0, gpu_check.run_part)}
    assert found["fingerprints equal the host's"]["figures"] == {"cases": 100}
    assert found["every write is seen"]["figures"]["DLPack"] > 10
    skipped = [name for name, part in found.items() if part["outcome"] == "skipped"]
    assert len(skipped) == len(found) - 2
    assert all(found[name]["reason"] == "needs a GPU" for name in skipped)


@pytest.mark.usefixtures("planted")
def test_gpu_check_part_that_fails_or_dies_stops_nothing_and_fails_the_run(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("breaks", "dies", "works")
    parts = [gpu_check.Part(name, f"planted_parts:{name}", 100, True) for name in names]
    path = tmp_path / "out" / "figures.json"
    assert gpu_check.main(["--dry-run", "--json", str(path)], parts) == 1
    found = json.loads(path.read_text())
    outcomes = {part["name"]: part["outcome"] for part in found["parts"]}
    assert outcomes == {"breaks": "failed", "dies": "failed", "works": "ok"}
    broken, died, worked = found["parts"]
    assert "RuntimeError: broken part" in broken["reason"] and "planted_parts.py" in broken["traceback"]
    assert "code -6" in died["reason"] and worked["figures"] == {"figure": 1}
    assert "cpus" in found["machine"]
    printed = capsys.readouterr().out
    assert "failed" in printed and "works: figure 1" in printed


@pytest.mark.usefixtures("planted")
def test_gpu_check_part_that_hangs_is_killed_with_what_it_started(
    gpu_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "KILL_AFTER_S", 0.5)
    # It ends only if the child that holds the other end of its output is gone too.
    found = gpu_check.run_apart("planted_parts:hangs", "cpu", 0.2)
    assert (found["outcome"], "no figures" in found["reason"]) == ("failed", True)


def test_gpu_check_part_that_takes_all_the_time_is_cut_off(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(gpu_check, "blocks", lambda device: {"read": os.read(read, 1)}, raising=False)
    monkeypatch.setattr(gpu_check, "next", lambda device: {}, raising=False)
    found = gpu_check.run_part("gpu_check:blocks", "cpu", 0.05)
    os.close(read)
    os.close(write)
    assert (found["outcome"], "cut off" in found["reason"]) == ("failed", True)
    # What it replaced is as it was.
    assert gpu_check.run_part("gpu_check:next", "cpu", 9.0)["outcome"] == "ok"


def test_gpu_check_has_every_part_and_they_fit_its_time(gpu_check: Any) -> None:
    wanted = (
        "equal", "every write", "speed", "dirty set", "pinning", "attach", "moved", "leased workers",
        "tests of real devices",
    )  # fmt: skip
    assert [part for word, part in zip(wanted, gpu_check.PARTS, strict=True) if word not in part.name] == []
    assert sum(part.share_s for part in gpu_check.PARTS) <= gpu_check.BUDGET_S <= 480
    for part in gpu_check.PARTS:
        module, _, function = part.run.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_gpu_check_part_gets_what_others_left_and_never_the_share_of_a_later_one(gpu_check: Any) -> None:
    limits: list[float] = []

    def run(_name: str, _device: str, limit_s: float) -> dict[str, Any]:
        limits.append(limit_s)
        return {"outcome": "ok"}

    parts = [gpu_check.Part(f"p{number}", "none:none", 100, True) for number in range(3)]
    found = list(gpu_check.run_all(parts, "cpu", 220.0, run))
    assert [part["outcome"] for part in found] == ["ok"] * 3
    assert all(limit <= most for limit, most in zip(limits, (100, 200, 220), strict=True))
    found = list(gpu_check.run_all([gpu_check.Part("long", "none:none", 100, True)], "cpu", 20.0, run))
    assert found[0]["outcome"] == "skipped"
    assert "s of the time are left" in found[0]["reason"] and len(limits) == 3


@pytest.mark.slow
def test_gpu_check_moves_a_session_between_two_processes(gpu_check: Any) -> None:
    import gpu_attach

    assert gpu_attach.session_moves("cpu")["moved"] == "yes"
