"""The store killed between any two system calls, also with a loss of power: nothing committed is lost or torn."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import LooseLeafError, NotFound
from looseleaf.kv import open_kv, scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import RegionRow, UnitRow
from looseleaf.services.checkpoint_store.index import Chained
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.usage import disk_bytes_of
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver
from .crash_play import CLOCK_START_MS, LIMITS, state_of

# (folder, kind, target) -> the player's wait status
Play = Callable[[Path, str, int], int]
# Points of each play that are tried in `make test`, with the kills of `test_server` 60; all of them in `make soak`.
SOAK = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
ALL = 10_000
CASES = [
    pytest.param("rocksdb-py", False, 20, id="killed"),
    pytest.param("rocksdb-py", True, 20, id="power lost"),
    pytest.param("rocksdict", False, 9, id="killed, rocksdict"),
    pytest.param("rocksdb-py", False, ALL, id="killed at every point", marks=SOAK),
    pytest.param("rocksdb-py", True, ALL, id="power lost at every point", marks=SOAK),
    pytest.param("rocksdict", False, ALL, id="killed at every point, rocksdict", marks=SOAK),
]
POINT_NAMES = 9
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    command = [sys.executable, "-m", f"{__package__}.crash_play"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as nursery:
        assert nursery.stdin is not None and nursery.stdout is not None

        def one(folder: Path, kind: str, target: int) -> int:
            assert nursery.stdin is not None and nursery.stdout is not None
            folder.mkdir()
            nursery.stdin.write(json.dumps({"folder": str(folder), "kind": kind, "target": target}) + "\n")
            nursery.stdin.flush()
            return int(nursery.stdout.readline())

        yield one
        nursery.stdin.close()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where a play happens: in memory for the few of `make test`, whose syncs would be most of their time."""
    if request.node.get_closest_marker("soak") is not None or not os.access(MEMORY, os.W_OK):
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(dir=MEMORY) as in_memory:
            yield Path(in_memory)


# Syncs of rocksdict cannot be followed from outside, so that only a kill is tried with it.
@pytest.mark.parametrize(("kind", "power_fails", "tries"), CASES)
def test_no_crash_loses_or_tears_what_was_committed(
    kind: str, power_fails: bool, tries: int, play: Play, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "rocksdict":
        pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
    assert play(folder / "whole", kind, 0) == 0
    points: list[str] = events_of(folder / "whole", "ended")[0]["points"]
    assert len(points) > 100
    died_at: Counter[str] = Counter()
    lost, torn, leaked = [], [], []
    for target in islice(some_of_each(points, random.Random(tries + power_fails)), tries):
        place = folder / f"at-{target}"
        assert os.WTERMSIG(play(place, kind, target)) == signal.SIGKILL
        died_at[events_of(place, "dies")[0]["point"]] += 1
        if power_fails:
            lose_power(place, random.Random(target))
        found = check(place, kind)
        lost += [(target, text) for text in found.lost]
        torn += [(target, text) for text in found.torn]
        leaked += [(target, text) for text in found.leaked]
        shutil.rmtree(place)
    assert (lost, torn, leaked) == ([], [], [])
    assert len(died_at) == len(set(points)) == POINT_NAMES
    assert died_at.total() == min(tries, len(points))
    with capsys.disabled():
        how = "lost power" if power_fails else "was killed"
        print(
            f"\ncheckpoint store on {kind}: it {how} {died_at.total()} times at {len(died_at)} kinds of points: "
            f"{len(lost)} versions lost, {len(torn)} torn, {len(leaked)} slots leaked"
        )


def some_of_each(points: list[str], rng: random.Random) -> Iterator[int]:
    """The numbers of all points, from 1, in an order in which each kind of point comes as early as every other."""
    by_name: dict[str, list[int]] = {}
    for number, name in enumerate(points, 1):
        by_name.setdefault(name, []).append(number)
    for numbers in by_name.values():
        rng.shuffle(numbers)
    while by_name:
        for name in list(by_name):
            yield by_name[name].pop()
            if not by_name[name]:
                del by_name[name]


def events_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The player's lines of those kinds, in order."""
    lines = (json.loads(line) for line in (folder / "log").read_text().splitlines())
    return [line for line in lines if line["kind"] in kinds]


def lose_power(folder: Path, rng: random.Random) -> None:
    """Takes away or spoils what no sync had put on the disk."""
    unsynced: dict[tuple[str, int], int] = {}
    for event in events_of(folder, "written", "synced"):
        if event["kind"] == "written":
            unsynced[event["file"], event["offset"]] = event["length"]
        else:
            unsynced = {place: length for place, length in unsynced.items() if place[0] != event["file"]}
    for (file, offset), length in unsynced.items():
        if Path(file).exists() and rng.random() < 0.8:
            with open(file, "r+b") as spoiled:
                spoiled.seek(offset + rng.randrange(length))
                spoiled.write(rng.randbytes(64))
    lengths = {event["file"]: event["length"] for event in events_of(folder, "log synced")}
    for log in (folder / "store" / "index").glob("*.log"):
        synced = lengths.get(str(log), 0)
        os.truncate(log, rng.randint(min(synced, log.stat().st_size), log.stat().st_size))


@dataclass
class Found:
    """What is wrong with a store after a crash, one sentence each."""

    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)


def check(folder: Path, kind: str) -> Found:
    """Opens the store as a restarted service does: sound, whole, without leaks, and able to go on."""
    clock = ManualClock(CLOCK_START_MS)
    store = Store(open_kv(folder / "store" / "index", kind), folder / "store", LIMITS, clock)
    found = Found()
    try:
        found.torn += verify_index(store.index)
        check_versions(store, folder, found)
        clock.advance(10_000)
        store.collector.collect()
        found.torn += verify_index(store.index)
        check_versions(store, folder, found)
        check_leaks(store, found)
        check_goes_on(store)
    finally:
        store.close()
    return found


def check_versions(store: Store, folder: Path, found: Found) -> None:
    acknowledged: dict[str, int] = {}
    durable: dict[str, int] = {}
    begun: dict[str, int] = {}
    for event in events_of(folder, "opened", "saving", "saved", "deleting", "deleted"):
        session_id = event["session"]
        if event["kind"] == "saving":
            begun[session_id] = event["version"]
        elif event["kind"] == "saved":
            acknowledged[session_id] = event["version"]
            if event["durable"]:
                durable[session_id] = event["version"]
        elif event["kind"] == "deleting":
            acknowledged.pop(session_id)
            durable.pop(session_id)
        elif event["kind"] == "deleted":
            with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
                store.index.session(session_id)
            begun.pop(session_id)
    sessions = dict(store.index.sessions())
    found.lost += [f"session {name} is gone" for name in acknowledged.keys() - sessions.keys()]
    for session_id, row in sessions.items():
        assert row.version <= begun.get(session_id, 0)
        if row.version < acknowledged.get(session_id, 0) or row.durable_version < durable.get(session_id, 0):
            found.lost.append(f"{session_id} is at {row.version}, durable {row.durable_version}")
        for entry in store.index.chain(session_id):
            if not is_whole(store, session_id, row.tenant, entry):
                found.torn.append(f"version {entry.version} of {session_id} is not what was saved")


def is_whole(store: Store, session_id: str, tenant: bytes, entry: Chained) -> bool:
    """Whether a version restores to what the player saved."""
    state = state_of(entry.version)
    regions = [Region(*key) for key, _ in state.region_chunks()]
    try:
        manifest = state.manifest(session_id, entry.row.parent, entry.row.epoch, entry.row.execution_id)
        return (
            store.sessions.manifest(session_id, entry.version, 0).manifest == manifest
            and store.units.get([key for key, _ in state.unit_pairs()], tenant) == list(state.units.values())
            and (not entry.row.durable or store.regions.get(regions, tenant) == list(state.regions.values()))
        )
    except LooseLeafError:
        return False


def check_leaks(store: Store, found: Found) -> None:
    """After a collection only what versions name takes room, in the accounts and on the disk."""
    rows = [RegionRow.decode(row) for _, row in scan_all(store.index.kv, keys.REGION)]
    slots = {row.written_slot for row in rows if row.written_slot is not None}
    named = {
        (session.tenant, region.region_id)
        for session_id, session in store.index.sessions()
        for entry in store.index.chain(session_id)
        for region in map(region_of, state_of(entry.version).regions.values())
    }
    allocated = {store.files.allocate() for _ in range(20)}
    assert not allocated & slots, "a slot was given out twice"
    store.files.free(allocated)
    disk_bytes = sum(path.stat().st_blocks * 512 for path in store.files.path_of(0)[0].parent.iterdir())
    live_bytes = sum(map(disk_bytes_of, rows))
    accounted = store.usage.used_bytes - sum(
        UnitRow.decode(row).size_bytes for _, row in scan_all(store.index.kv, keys.UNIT)
    )
    if len(rows) > len(named):
        found.leaked.append(f"{len(rows)} regions, of which versions name {len(named)}")
    if min(allocated) > len(slots):
        found.leaked.append(f"slot {min(allocated)} is the lowest free one above {len(slots)} used ones")
    if disk_bytes > live_bytes + 64 * 1024 or accounted != live_bytes:
        found.leaked.append(f"{disk_bytes} bytes on the disk and {accounted} accounted for {live_bytes} live ones")


def region_of(data: bytes) -> Region:
    return Region(hash128(data), len(data))


def check_goes_on(store: Store) -> None:
    saver = Saver(store, "s-first", host_id="")
    state = state_of(77)
    upload = store.regions.begin_upload()
    upload.add([(Region(*key), data) for key, data in state.region_chunks()])
    upload.finish()
    version = saver.save(state)
    assert store.index.version("s-first", version).durable
    assert verify_index(store.index) == []
