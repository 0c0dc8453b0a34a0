"""States to commit, and a store over a database in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from looseleaf.checkpoint.manifest import (
    ALGORITHM_XXH3,
    Manifest,
    PayloadEntry,
    RegionRef,
    UnitEntry,
    UnitHeader,
    encode_manifest,
)
from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.units import REGION_BYTES


@dataclass(frozen=True)
class State:
    """What a test saves: variables of small pickles and of one region each."""

    units: Mapping[str, bytes]
    regions: Mapping[str, bytes]

    def unit_pairs(self) -> list[tuple[bytes, bytes]]:
        return [(hash128(data), data) for data in self.units.values()]

    def region_chunks(self) -> list[tuple[tuple[bytes, int], bytes]]:
        return [((hash128(data), len(data)), data) for data in self.regions.values()]

    def manifest(self, session_id: str, parent: int, epoch: int, execution_id: str) -> bytes:
        units: dict[UnitId, UnitEntry] = {}
        payloads: dict[PayloadId, PayloadEntry] = {}
        for number, (name, data) in enumerate(self.units.items()):
            header = UnitHeader(preview=name)
            units[UnitId(2 * number + 1)] = UnitEntry(hash128(data), len(data), (), header)
        for number, data in enumerate(self.regions.values()):
            ref = RegionRef(hash128(data), len(data))
            payloads[PayloadId(2 * number + 2)] = PayloadEntry(
                "memory", "cpu", len(data), ALGORITHM_XXH3, REGION_BYTES, (ref,)
            )
        roots = {name: UnitId(2 * number + 1) for number, name in enumerate(self.units)}
        return encode_manifest(Manifest(
            SessionId(session_id), Version(parent + 1), Version(parent), Epoch(epoch), ExecutionId(execution_id),
            next_id=1_000_000, roots=roots, units=units, payloads=payloads,
        ))  # fmt: skip


def make_state(units: Sequence[str] = (), regions: Sequence[str] = (), region_bytes: int = 64) -> State:
    """One variable per text; the bytes follow from the text alone."""
    return State(
        {f"u{text}": f"unit {text}".encode() for text in units},
        {f"r{text}": (text.encode() + b".") * region_bytes for text in regions},
    )


class Saver:
    """One owner of a session that commits states to a `Store` in this process."""

    def __init__(self, store: Store, session_id: str = "s1", host_id: str = "h1") -> None:
        self.store = store
        self.session_id = session_id
        self.host_id = host_id
        head = store.sessions.open(session_id, create=True, raise_epoch=True, title="")
        self.epoch = head.epoch
        self.version = head.version
        self.saves = 0

    def save(self, state: State, host_id: str | None = None) -> int:
        """Puts the units and commits; regions stay with the host."""
        self.store.units.put(state.unit_pairs())
        self.saves += 1
        execution_id = f"x-{self.session_id}-{self.epoch}-{self.saves}"
        committed = self.store.commits.commit(
            self.session_id, epoch=self.epoch, parent=self.version, execution_id=execution_id,
            manifest=state.manifest(self.session_id, self.version, self.epoch, execution_id),
            host_id=self.host_id if host_id is None else host_id,
        )  # fmt: skip
        self.version = committed.version
        return committed.version


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    limits = StoreLimits(versions_kept_max=3, orphan_grace_s=60, stored_bytes_max=64 << 20)
    opened = open_store(tmp_path / "store", limits, kind="memory", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def saver(store: Store) -> Saver:
    return Saver(store)
