"""A kept result is found for the same parameters, seed and code only, and is what was put."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from looseleaf.sim import kept
from looseleaf.sim.kept import KeptResults, code_of
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.model import Model
from looseleaf.sim.results import SeedResult

RESULT = SeedResult(
    3, 12.5, 24, dict.fromkeys(GpuState, 1.5), [0.005, 1.00003], 0, 4, 100, {"ordered": 4, "used": 3}, 0.5,
    {"no GPU": 1})


def test_result_is_found_as_it_was_put(tmp_path: Path, w1: Model) -> None:
    results = KeptResults(tmp_path / "kept")
    assert results.get(w1, "looseleaf", 24, 3) is None
    results.put(w1, "looseleaf", 24, RESULT)
    assert KeptResults(tmp_path / "kept").get(w1, "looseleaf", 24, 3) == RESULT


def test_result_of_anything_else_is_not_found(tmp_path: Path, w1: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    results = KeptResults(tmp_path)
    results.put(w1, "looseleaf", 24, RESULT)
    others = [
        w1.changed(hours=1.0), w1.changed(attach_s=0.1), w1.changed(without=frozenset({"prediction"})),
        w1.changed(limits={"headroom_share": 0.1}), replace(w1, hosts=replace(w1.hosts, gpus=4)), w1.named("mine"),
    ]  # fmt: skip
    assert [results.get(model, "looseleaf", 24, 3) for model in others] == [None] * len(others)
    assert results.get(w1, "modal", 24, 3) is results.get(w1, "looseleaf", 25, 3) is None
    assert results.get(w1, "looseleaf", 24, 4) is None
    monkeypatch.setattr(kept, "code_of", lambda policy: "other code")
    assert results.get(w1, "looseleaf", 24, 3) is None


@pytest.mark.parametrize("text", ["", "{}", '{"parameters": 1, "result": {}}'])
def test_broken_file_counts_as_none(tmp_path: Path, w1: Model, text: str) -> None:
    results = KeptResults(tmp_path)
    results.put(w1, "looseleaf", 24, RESULT)
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    assert results.get(w1, "looseleaf", 24, 3) is None


def test_code_of_looseleaf_is_also_that_of_the_scheduler() -> None:
    assert code_of("looseleaf") != code_of("pinned") == code_of("modal")
