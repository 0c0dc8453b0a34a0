"""What is loaded for a CPU cell, and what is refused before a cell runs."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.checkpoint.manifest import Manifest, PayloadEntry, UnitEntry, UnitHeader, Unsaved
from looseleaf.errors import PreconditionFailed
from looseleaf.ids import Epoch, PayloadId, SessionId, UnitId
from looseleaf.kernel.holders import Holders
from looseleaf.kernel.needs import device_bytes, refuse_device_reads, refuse_unsaved, stubs_to_load
from looseleaf.recipe.recipe import Recipe

SMALL, LARGE = 1 << 10, 1 << 30


@pytest.fixture
def manifest() -> Manifest:
    """`loss` and `model` live on a GPU, `table` on the CPU; `lines` was never saved."""

    def unit(number: int, *payloads: int) -> UnitEntry:
        header = UnitHeader(payloads=tuple(PayloadId(p) for p in payloads))
        return UnitEntry(bytes([number]) * 16, 10, (), header)

    def payload(device: str, size: int) -> PayloadEntry:
        return PayloadEntry("memory", device, size, "xxh3-128", 2 << 20, ())

    return Manifest(
        SessionId("s-1"), next_id=50, roots={"loss": UnitId(1), "model": UnitId(2), "table": UnitId(3)},
        units={UnitId(1): unit(1, 11), UnitId(2): unit(2, 12), UnitId(3): unit(3, 13)},
        payloads={
            PayloadId(11): payload("cuda:0", SMALL), PayloadId(12): payload("cuda:0", LARGE),
            PayloadId(13): payload("cpu", LARGE),
        },
        unsaved=(Unsaved("lines", "LIVE_ITERATOR", "lines", "a generator cannot be moved"),),
    )  # fmt: skip


def never_sent(*_: object) -> Any:
    raise AssertionError("nothing is released here")


def test_stubs_to_load_are_the_named_ones(manifest: Manifest) -> None:
    recipe = Recipe(names=("loss", "table", "elsewhere"))
    assert stubs_to_load(recipe, {"loss", "model"}, manifest, SMALL) == ["loss"]


def test_stubs_to_load_for_a_cell_that_may_reach_anything_leaves_large_device_values_out(manifest: Manifest) -> None:
    recipe = Recipe(names=("loss", "model", "table"), dynamic=True)
    assert stubs_to_load(recipe, {"loss", "model", "table"}, manifest, SMALL) == ["loss", "table"]


def test_device_reads_small_ones_pass_and_large_ones_name_the_variable(manifest: Manifest) -> None:
    assert device_bytes(manifest, ["loss", "table"]) == SMALL
    refuse_device_reads(manifest, ["loss", "table"], SMALL)
    with pytest.raises(PreconditionFailed, match="%%gpu") as caught:
        refuse_device_reads(manifest, ["loss", "model", "table"], SMALL)
    assert caught.value.reason == "CUDA_IN_CPU_CELL" and caught.value.fields["names"] == ["loss", "model"]


def test_unsaved_needed_name_is_refused_with_its_cause(manifest: Manifest) -> None:
    refuse_unsaved(manifest, ["loss"], Holders(never_sent), Epoch(1))
    with pytest.raises(PreconditionFailed, match="a generator cannot be moved") as caught:
        refuse_unsaved(manifest, ["loss", "lines"], Holders(never_sent), Epoch(1))
    assert caught.value.reason == "UNSAVED_VARIABLE" and caught.value.fields["cause"] == "LIVE_ITERATOR"
