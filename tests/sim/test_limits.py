"""The scheduler's limits in a simulation can be changed by name, and a misspelt one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.sim.limits import limits_of_words, sim_limits
from looseleaf.sim.model import Model, read_model


def test_limits_of_words_have_their_fields_kinds() -> None:
    changed = limits_of_words(["headroom_share=0.1", "headroom_hosts=2", "prepare_stage_max=host_ready"])
    limits = sim_limits(8, 60.0, changed)
    assert (limits.headroom_share, limits.headroom_hosts, limits.prepare_stage_max) == (
        0.1, 2, WorkerStage.HOST_READY)
    assert type(limits.headroom_hosts) is int and type(limits_of_words(["demand_peak_s=60"])["demand_peak_s"]) is float
    assert sim_limits(8, 60.0, {}).headroom_share != Limits().headroom_share


@pytest.mark.parametrize("word", [
    "headroom=0.1", "headroom_share", "headroom_share=much", "headroom_share=-1", "headroom_hosts=0.5",
    "prepare_stage_max=3", "prepare_stage_max=soon", "tenant_weights=1", "__class__=1",
])  # fmt: skip
def test_word_that_is_no_limit_is_refused(word: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        limits_of_words([word])
    assert refused.value.reason == "LIMIT_UNKNOWN"


def test_workload_file_changes_limits_and_options_go_before_it(tmp_path: Path, w1: Model) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "w1"\n[limits]\nheadroom_share = 0.5\nprepare_stage_max = "context_ready"\n')
    model = read_model(path)
    expected: dict[str, Any] = {"headroom_share": 0.5, "prepare_stage_max": WorkerStage.CONTEXT_READY}
    assert dict(model.limits) == expected
    assert dict(model.changed(limits={"headroom_share": 0.1}).limits) == expected | {"headroom_share": 0.1}
    assert model.workload == w1.workload
