"""Manifests that are not what a saver wrote: refused by reason, with nothing changed."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionRef,
    encode_manifest,
)
from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import Conflict, Corrupt, InvalidArgument, LooseLeafError, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, Version
from looseleaf.kv.memory import MemoryKv
from looseleaf.services.checkpoint_store.store import Store, StoreLimits
from looseleaf.services.checkpoint_store.verifier import verify_index
from looseleaf.units import REGION_BYTES

from .conftest import Saver, make_state

HEAD_BYTES = 21
GOOD = make_state(units=["a", "b"], regions=["a", "b"]).manifest("s1", 1, 1, "x2")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(MemoryKv(), tmp_path_factory.mktemp("store"), StoreLimits(), ManualClock())
    Saver(store).save(make_state(units=["a", "b"]))
    return store


def refused(store: Store, manifest: bytes) -> LooseLeafError | None:
    """The error of a commit of these bytes; None for the one right manifest."""
    try:
        store.commits.commit("s1", epoch=1, parent=1, execution_id="x2", manifest=manifest, host_id="")
    except (Corrupt, InvalidArgument, PreconditionFailed) as error:
        return error
    return None


EDIT = st.tuples(st.integers(0, len(GOOD) + 5), st.integers(0, 3), st.integers(0, 255))
EDITS = st.lists(EDIT, min_size=1, max_size=4)


def edited(data: bytes, edits: list[tuple[int, int, int]]) -> bytes:
    changed = bytearray(data)
    for at, kind, value in edits:
        at = min(at, len(changed))
        if kind == 0:
            changed[at : at + 1] = bytes([value])
        elif kind == 1:
            changed[at:at] = bytes([value])
        elif kind == 2:
            del changed[at : at + value]
        else:
            changed[at:] = changed[at : at + value]
    return bytes(changed)


@settings(max_examples=80)
@given(edits=EDITS, resealed=st.booleans())
def test_any_edit_of_a_manifest_is_refused_and_changes_nothing(
    fuzzed: Store, edits: list[tuple[int, int, int]], resealed: bool
) -> None:
    data = edited(GOOD, edits)
    if resealed:
        # A right checksum over wrong contents: the fields themselves must be checked.
        data = data[:5] + hash128(data[HEAD_BYTES:]) + data[HEAD_BYTES:]
    error = refused(fuzzed, data)
    # No host, and regions that nobody holds: not even the right manifest is accepted.
    assert error is not None
    assert fuzzed.sessions.manifest("s1", 0, 0).version == 1
    assert verify_index(fuzzed.index) == []


@settings(max_examples=50)
@given(body=st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 63) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=40,
))  # fmt: skip
def test_any_sealed_body_is_refused(fuzzed: Store, body: object) -> None:
    packed = msgpack.packb(body, use_bin_type=True)
    assert isinstance(refused(fuzzed, b"LLMF\x02" + hash128(packed) + packed), Corrupt)


def test_region_larger_than_a_slot_is_refused(store: Store, saver: Saver) -> None:
    size_bytes = 2 * REGION_BYTES
    payload = PayloadEntry(
        "memory", "cpu", size_bytes, ALGORITHM_XXH3, 2 * REGION_BYTES, (RegionRef(bytes(16), size_bytes),)
    )
    manifest = encode_manifest(Manifest(
        SessionId("s1"), Version(1), Version(0), Epoch(saver.epoch), ExecutionId("x1"), next_id=9,
        payloads={PayloadId(1): payload},
    ))  # fmt: skip
    with pytest.raises(InvalidArgument, match="REGION_LENGTH"):
        store.commits.commit(
            "s1", epoch=saver.epoch, parent=0, execution_id="x1", manifest=manifest, host_id="h1"
        )


def test_version_whose_bytes_stayed_in_the_kernel_is_stored_without_them(store: Store, saver: Saver) -> None:
    payload = PayloadEntry("memory", "cpu", 5 * REGION_BYTES, ALGORITHM_XXH3, REGION_BYTES, (), Version(1))
    manifest = encode_manifest(Manifest(
        SessionId("s1"), Version(1), Version(0), Epoch(saver.epoch), ExecutionId("x1"), next_id=9,
        payloads={PayloadId(1): payload},
    ))  # fmt: skip
    done = store.commits.commit("s1", epoch=saver.epoch, parent=0, execution_id="x1", manifest=manifest, host_id="h1")
    assert (done.version, done.durable) == (1, True)
    row = store.sessions.versions("s1", 1)[0].row
    assert (row.lazy_bytes, row.logical_bytes) == (5 * REGION_BYTES, 0)
    assert verify_index(store.index) == []


def test_failed_index_write_changes_nothing_and_the_commit_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = MemoryKv()
    store = Store(kv, tmp_path, StoreLimits(), ManualClock())
    saver = Saver(store)
    state = make_state(units=["a"], regions=["a"])

    def fail(*args: object, **kwargs: object) -> None:
        raise Conflict("INJECTED", "the disk failed")

    store.units.put(state.unit_pairs())
    with monkeypatch.context() as patch:
        patch.setattr(kv, "write", fail)
        with pytest.raises(Conflict, match="INJECTED"):
            store.commits.commit(
                "s1", epoch=1, parent=0, execution_id="x1", manifest=state.manifest("s1", 0, 1, "x1"), host_id="h1"
            )
    assert store.sessions.manifest("s1", 0, 0).version == 0
    assert verify_index(store.index) == []
    assert saver.save(state) == 1
    assert verify_index(store.index) == []
