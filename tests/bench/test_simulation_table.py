"""The simulator's tables: every row that is promised, and a run that goes on where it was broken off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import simulation_table
from simulation_table import TABLES, Row, Runs, show

from looseleaf.sim.kept import KeptResults
from looseleaf.sim.model import Model, load_model
from looseleaf.sim.results import SeedResult
from looseleaf.sim.runner import simulate_seed


def rows_of(name: str) -> list[Row]:
    table = TABLES[name]
    return list(table.rows(table.sessions))


def test_tables_have_the_rows_that_are_promised() -> None:
    policies = Counter((row.policy, row.model.name) for row in rows_of("policies"))
    assert len(policies) == 10 and set(policies.values()) == {5}
    assert {row.model.mechanism.attach_s for row in rows_of("attach")} == {0.1, 0.3, 0.5, 0.8}
    assert [sorted(row.model.mechanism.without) for row in rows_of("ablations")] == [
        [], ["import-cache"], ["closures"], ["speculation"], ["context-ready"], ["prediction"]]
    assert [row.model.name for row in rows_of("variants")] == ["dense", "fast", "churn", "hetero", "day"]
    assert {row.sessions for name in ("attach", "ablations", "variants", "stages") for row in rows_of(name)} == {72}


def test_run_that_was_broken_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    simulated: list[int] = []
    def counted(model: Model, policy: str, sessions: int, seed: int, streams: Any) -> SeedResult:
        simulated.append(seed)
        return simulate_seed(model, policy, sessions, seed, streams)

    monkeypatch.setattr(simulation_table, "simulate_seed", counted)
    row = Row("pinned", load_model("w1").changed(hours=0.5), "pinned", 3)
    kept = KeptResults(tmp_path)
    assert show("policies", [row], Runs(kept, 2, 1, budget_s=0.0)) == []
    assert "Left out for lack of time: pinned w1 3." in capsys.readouterr().out
    (first,) = show("policies", [row], Runs(kept, 2, 1, budget_s=1e9))
    (again,) = show("policies", [row], Runs(kept, 3, 1, budget_s=1e9))
    assert simulated == [1, 2, 3]
    assert [seed.seed for seed in again.seeds] == [1, 2, 3] and again.seeds[:2] == first.seeds
    assert "| pinned | 3 | w1 | 3 | 8.0 ±0.0 |" in capsys.readouterr().out
