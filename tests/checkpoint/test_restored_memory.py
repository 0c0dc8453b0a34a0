"""Saves of restored memory read only what was written since, and are as right as saves that read everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import checkpoint_nursery
import numpy as np
import pytest

from looseleaf import devices
from looseleaf.checkpoint import paranoid, payload_hashes
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.dirty_tracker import MappedRegions, Memfd, region_hashes, region_tables, written
from looseleaf.errors import Corrupt
from looseleaf.units import REGION_BYTES

REGIONS = 9
SIZE_BYTES = REGIONS * REGION_BYTES - 4096


class ArenaIO(checkpoint_nursery.MemoryIO):
    """Maps slots of shared memory, as a host's daemon does."""

    def __init__(self) -> None:
        super().__init__()
        self.arenas: list[Memfd] = []
        self.put = 0

    def put_regions(self, items: Any) -> None:
        items = list(items)
        self.put += len(items)
        super().put_regions(items)

    def map_regions(self, refs: Any) -> MappedRegions:
        arena = Memfd.create("test-arena", len(refs) * REGION_BYTES)
        self.arenas.append(arena)
        for slot, ref in enumerate(refs):
            arena.buffer[slot * REGION_BYTES :][: ref.length_bytes] = self.regions[ref.region_id]
        return MappedRegions([(arena.fd, slot * REGION_BYTES, ref.length_bytes) for slot, ref in enumerate(refs)])

    def map_many(self, groups: Any) -> list[MappedRegions]:
        return [self.map_regions(refs) for refs in groups]


class Session:
    """A process's share: a namespace and its tracker over `io`."""

    def __init__(self, io: ArenaIO, *, paranoid: bool = False, **namespace: Any) -> None:
        self.namespace = dict(namespace)
        self.tracker = StateTracker(
            self.namespace, io, session_id="s-test", epoch=1, hidden=checkpoint_nursery.hidden, paranoid=paranoid
        )  # fmt: skip
        self.saves = 0

    def save(self) -> None:
        self.saves += 1
        assert not self.tracker.save(f"x-{id(self)}-{self.saves}").unsaved

    def restored(self) -> Any:
        report = self.tracker.restore(["value"])
        assert not report.failed
        return self.namespace["value"]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many regions of each block a save has hashed."""
    blocks: list[int] = []

    def counted(payloads: Any, **options: Any) -> Any:
        found = region_tables(payloads, **options)
        blocks.extend(table.hashed_regions for table in found)
        return found

    monkeypatch.setattr(payload_hashes, "region_tables", counted)
    return blocks


@pytest.fixture
def virtual_gpu() -> Iterator[None]:
    """Its memory is this process's, so that its written pages are known as well."""
    devices.install("worker", "emulated", 1)
    devices.attach([0])
    yield
    devices.uninstall()


@pytest.mark.parametrize("kind", ["numpy", "torch", "virtual"])
def test_save_of_restored_memory_hashes_written_regions_only(
    kind: str, hashed: list[int], request: pytest.FixtureRequest
) -> None:
    if written.pagemap_support()[0] is None:
        pytest.skip("the page tables cannot be read here")
    io = ArenaIO()
    value: Any = np.random.default_rng(1).integers(0, 256, SIZE_BYTES, dtype=np.uint8)
    if kind != "numpy":
        import torch

        if kind == "virtual":
            request.getfixturevalue("virtual_gpu")
        value = torch.from_numpy(value.copy()).to("cuda" if kind == "virtual" else "cpu")
    Session(io, value=value).save()
    session = Session(io)
    restored = session.restored()
    hashed.clear()
    # Unchanged; one region; two more and the first again with its old value; nothing since.
    for changes, expected, moved in (([], 0, 0), ([3], 1, 1), ([7, 8], 3, 2), ([], 3, 0)):
        before = io.put
        for region in changes:
            restored[region * REGION_BYTES + 5] ^= 1
            value[region * REGION_BYTES + 5] ^= 1
        session.save()
        assert sum(hashed) == expected
        assert io.put - before == moved
        hashed.clear()
    again = Session(io).restored()
    assert bool((again == value).all())


def test_save_of_restored_memory_that_is_gone_hashes_what_took_its_place(hashed: list[int]) -> None:
    io = ArenaIO()
    first = np.random.default_rng(2).integers(0, 256, SIZE_BYTES, dtype=np.uint8)
    Session(io, value=first).save()
    session = Session(io)
    session.restored()
    session.namespace["value"] = session.namespace["value"].copy()
    session.namespace["value"][0] ^= 1
    hashed.clear()
    session.save()
    assert sum(hashed) == REGIONS
    first[0] ^= 1
    assert (Session(io).restored() == first).all()


def test_save_without_page_tables_hashes_everything(hashed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    io = ArenaIO()
    Session(io, value=np.arange(SIZE_BYTES // 8)).save()
    session = Session(io)
    session.restored()[0] = 77
    monkeypatch.setattr(written, "pagemap_support", lambda: (None, "made up"))
    hashed.clear()
    session.save()
    assert sum(hashed) == REGIONS
    assert Session(io).restored()[0] == 77


def lies(payloads: Any, **options: Any) -> Any:
    """Fingerprints that take all memory for what it was."""
    return [table._replace(hashes=payload.last or table.hashes, dirty=[] if payload.last else table.dirty)
            for payload, table in zip(payloads, region_tables(payloads, **options), strict=True)]  # fmt: skip


@pytest.mark.parametrize("is_restored", [True, False])
def test_paranoid_save_finds_what_fingerprints_and_page_tables_miss(
    is_restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = ArenaIO()
    session = Session(io, paranoid=True, value=np.zeros(SIZE_BYTES, dtype=np.uint8))
    session.save()
    if is_restored:
        session = Session(io, paranoid=True)
        session.restored()
        monkeypatch.setattr(written._core.Pagemap, "written_regions", lambda *_: [])
    monkeypatch.setattr(payload_hashes, "region_tables", lies)
    for region in (3, 3, REGIONS - 1):
        session.namespace["value"][region * REGION_BYTES + 7] += 1
        before = io.put
        session.save()
        assert io.put - before == 1
    monkeypatch.undo()
    assert session.tracker.shadows.missed_regions == (3 if is_restored else 0)
    assert np.array_equal(Session(io).restored(), session.namespace["value"])


def test_paranoid_save_of_two_contents_with_one_fingerprint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    io = ArenaIO()
    session = Session(io, paranoid=True, value=np.zeros(SIZE_BYTES, dtype=np.uint8))
    session.save()
    zeros = region_hashes(bytes(SIZE_BYTES))
    monkeypatch.setattr(paranoid, "region_hashes", lambda _data: zeros)
    session.save()
    session.namespace["value"][5 * REGION_BYTES] = 1
    with pytest.raises(Corrupt, match="FINGERPRINT_COLLISION"):
        session.save()
    monkeypatch.undo()
    session.save()
    assert Session(io).restored()[5 * REGION_BYTES] == 1
