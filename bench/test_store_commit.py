"""A commit of the checkpoint store beside the one synchronisation of the disk that it cannot do without.

In the store's own process, without RPC: what checks, index and database add; and of that the database alone, with a
batch as large as a commit's. And what garbage costs the disk: the bytes that a store takes after a collection, beside
those that its versions name.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, Target, alternate, publish, timed_s
from pytest_benchmark.fixture import BenchmarkFixture

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
from looseleaf.kv import Batch
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.units import KIB, REGION_BYTES

ROUNDS = 9
COMMITS_A_ROUND = 20
# A session of 20 variables, of which a cell changes one.
VARIABLES = 20
UNIT_BYTES = 2 * KIB
BATCH_ROWS, BATCH_BYTES = 8, 8 * KIB
KINDS = ["rocksdb-py", "rocksdict"]
# What a log must do; and what no log can do, as the file system has no new block and no new length to note.
APPENDED, IN_PLACE = "append and fdatasync", "rewrite and fdatasync"
COMMIT_TARGET = Target("ratio", 10.0, "<= 10")
# Of each version half is new: with two kept ones, two thirds of what was written is garbage.
REGIONS, SMOKE_REGIONS, VERSIONS = 32, 4, 8
PHYSICAL_TO_LIVE_MAX = 1.1


class Session:
    """One session that commits versions to a store in this process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = store.sessions.open("s1", create=True, raise_epoch=True, title="").epoch
        self.version = 0
        self.units = {number: self._unit(number) for number in range(VARIABLES)}
        store.units.put([(hash128(data), data) for data in self.units.values()])
        self._rng = random.Random(1)

    def _unit(self, number: int) -> bytes:
        return number.to_bytes(8, "big") + os.urandom(UNIT_BYTES)

    def change_one(self) -> float:
        """A cell changes a variable: seconds until its unit is put and the version durable in the index."""
        number = self._rng.randrange(VARIABLES)
        changed = self.units[number] = self._unit(number)
        manifest = self.manifest({})

        def save() -> None:
            self.store.units.put([(hash128(changed), changed)])
            self.commit(manifest)

        return timed_s(save)

    def manifest(self, regions: dict[int, bytes]) -> bytes:
        """The next version's: the units, and regions that the store's disk has."""
        units = {
            UnitId(number + 1): UnitEntry(hash128(data), len(data), (), UnitHeader())
            for number, data in self.units.items()
        }
        payloads = {
            PayloadId(VARIABLES + 1 + number): PayloadEntry(
                "memory", "cpu", len(data), ALGORITHM_XXH3, REGION_BYTES, (RegionRef(hash128(data), len(data)),)
            )
            for number, data in regions.items()
        }
        return encode_manifest(Manifest(
            SessionId("s1"), Version(self.version + 1), Version(self.version), Epoch(self.epoch),
            ExecutionId(f"x-{self.version}"), next_id=1_000_000, units=units, payloads=payloads,
            roots={f"v{number}": UnitId(number + 1) for number in self.units},
        ))  # fmt: skip

    def commit(self, manifest: bytes) -> None:
        """Makes it the newest version."""
        self.version = self.store.commits.commit(
            "s1", epoch=self.epoch, parent=self.version, execution_id=f"x-{self.version}", manifest=manifest, host_id=""
        ).version


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory, smoke: bool) -> Iterator[Rounds]:
    pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
    repeats = 1 if smoke else COMMITS_A_ROUND
    with ExitStack() as stack:
        tasks: dict[str, Any] = {}
        for kind in KINDS:
            store = open_store(tmp_path_factory.mktemp(kind), kind=kind)
            stack.callback(store.close)
            session = Session(store)
            kv, rows = store.index.kv, Batch()
            for number in range(BATCH_ROWS):
                rows.put(b"z%d" % number, bytes(BATCH_BYTES // BATCH_ROWS))
            tasks[kind] = lambda session=session: [session.change_one() for _ in range(repeats)]
            tasks[f"batch, {kind}"] = lambda kv=kv, rows=rows: [
                timed_s(lambda: kv.write(rows, durable=True)) for _ in range(repeats)
            ]
        fd = os.open(tmp_path_factory.mktemp("bare") / "file", os.O_CREAT | os.O_RDWR)
        stack.callback(os.close, fd)

        def bare(offset: int) -> None:
            os.pwrite(fd, os.urandom(4 * KIB), offset)
            os.fdatasync(fd)

        bare(0)
        tasks[APPENDED] = lambda: [timed_s(bare, os.fstat(fd).st_size) for _ in range(repeats)]
        tasks[IN_PLACE] = lambda: [timed_s(bare, 0) for _ in range(repeats)]
        yield alternate(tasks, rounds=1 if smoke else ROUNDS)


@pytest.mark.parametrize("kind", KINDS)
def test_commit_of_one_changed_variable(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    what = f"commit of one changed variable of {VARIABLES}, {kind}"
    publish(benchmark, rounds, kind, what, (APPENDED, COMMIT_TARGET), (IN_PLACE, None))


@pytest.mark.parametrize("kind", KINDS)
def test_durable_batch_of_the_database(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    what = f"durable batch of {BATCH_BYTES // KIB} KiB, {kind}"
    publish(benchmark, rounds, f"batch, {kind}", what, (APPENDED, COMMIT_TARGET), (IN_PLACE, None))


def test_collection_leaves_little_more_than_what_versions_name(
    benchmark: BenchmarkFixture, tmp_path: Path, smoke: bool
) -> None:
    regions = SMOKE_REGIONS if smoke else REGIONS
    clock = ManualClock(1_000_000)
    found, ratios = Rounds(), []
    for number in range(1 if smoke else 3):
        store = open_store(tmp_path / str(number), StoreLimits(versions_kept_max=2), clock=clock)
        live_bytes = fill(Session(store), regions)
        clock.advance(10_000)
        found.add("collection", timed_s(store.collector.collect))
        ratios.append(physical_bytes(tmp_path / str(number)) / live_bytes)
        store.close()
        shutil.rmtree(tmp_path / str(number))
    physical_to_live = max(ratios)
    what = f"collection of {VERSIONS - 2} versions; bytes on disk / live bytes after it: {physical_to_live:.3f}"
    publish(benchmark, found, "collection", what, (None, None), physical_to_live=physical_to_live)
    # Beside the few bytes of a smoke run the database's own log is large.
    assert smoke or physical_to_live <= PHYSICAL_TO_LIVE_MAX


def fill(session: Session, regions: int) -> int:
    """Commits VERSIONS versions; returns the bytes that the two last ones name."""
    contents = {number: os.urandom(REGION_BYTES) for number in range(regions)}
    named: set[bytes] = set()
    for version in range(VERSIONS):
        # Every other region changes.
        changed = range(version % 2, regions, 2) if version else range(regions)
        contents.update({number: os.urandom(REGION_BYTES) for number in changed if version})
        upload = session.store.regions.begin_upload(size_bytes=len(changed) * REGION_BYTES)
        upload.add([(Region(hash128(contents[number]), REGION_BYTES), contents[number]) for number in changed])
        upload.finish()
        session.commit(session.manifest(contents))
        if version >= VERSIONS - 2:
            named.update(map(hash128, contents.values()))
    return len(named) * REGION_BYTES + sum(map(len, session.units.values()))


def physical_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
