"""Settings are read whole or refused, and what parts of the machinery take adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.sim.model import WORKLOADS, Model, load_model, read_model
from looseleaf.units import GIB


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_of_every_name_loads(name: str) -> None:
    assert load_model(name).name == name


def test_workload_of_another_name_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        load_model("w2")
    assert refused.value.reason == "WORKLOAD_UNKNOWN"


def test_file_changes_what_it_names_and_keeps_the_rest(tmp_path: Path, w1: Model) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "long"\n[hosts]\ngpus = 4\n')
    model = read_model(path)
    assert (model.name, model.hosts.gpus, model.workload.pause_share) == ("mine", 4, 0.10)
    assert model.mechanism == w1.mechanism


@pytest.mark.parametrize("text", [
    'base = "w1"\n[workload]\nedit_medain_s = 3.0\n', 'base = "w1"\n[people]\nx = 1\n', 'base = "no"\n',
    "[workload]\nhours = 1.0\n", 'base = "w1"\nworkload = 3\n', "not toml",
])  # fmt: skip
def test_file_that_nobody_understands_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        read_model(path)
    assert refused.value.reason == "WORKLOAD_MALFORMED"


def test_preparation_without_import_cache_and_closures_is_the_naive_one(w1: Model) -> None:
    assert w1.mechanism.prepare_factor == pytest.approx(1.0)
    both = w1.changed(without=frozenset({"import-cache", "closures"})).mechanism
    assert both.prepare_factor == pytest.approx(w1.mechanism.naive_factor)
    for one in ("import-cache", "closures"):
        assert 1.0 < w1.changed(without=frozenset({one})).mechanism.prepare_factor < both.prepare_factor


def test_part_that_nobody_knows_cannot_be_left_out(w1: Model) -> None:
    with pytest.raises(InvalidArgument) as refused:
        w1.changed(without=frozenset({"luck"}))
    assert refused.value.reason == "ABLATION_UNKNOWN"


def test_attach_is_context_and_copy_unless_it_is_given(w1: Model) -> None:
    assert w1.mechanism.attach_parts_s(20 * 10**9) == pytest.approx((0.3, 1.0))
    assert w1.changed(attach_s=0.8).mechanism.attach_parts_s(64 * GIB) == pytest.approx((0.3, 0.5))
    assert w1.changed(attach_s=0.1).mechanism.attach_parts_s(64 * GIB) == (0.1, 0.0)
