"""The store killed between any two system calls, also with a loss of power: nothing committed is lost or torn."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import NotFound
from looseleaf.kv import open_kv, scan_all
from looseleaf.services.checkpoint_store.core import keys
from looseleaf.services.checkpoint_store.core.rows import RegionRow
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.verifier import verify_index

from .conftest import Saver
from .crash_play import CLOCK_START_MS, LIMITS, state_of

# (folder, kind, target) -> the player's wait status
Play = Callable[[Path, str, int], int]
# Points of each play that are tried in `make test`; all of them in `make soak`.
HOW_MANY = [20, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(4 * 3600)])]
POINT_NAMES = 9


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


@pytest.mark.parametrize("tries", HOW_MANY)
@pytest.mark.parametrize("power_fails", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("kind", ["rocksdb-py", "rocksdict"])
def test_no_crash_loses_or_tears_what_was_committed(
    kind: str, power_fails: bool, tries: int, play: Play, tmp_path: Path
) -> None:
    if kind == "rocksdict":
        pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
        if power_fails:
            pytest.skip("only the default kind's syncs can be followed from outside")
    assert play(tmp_path / "whole", kind, 0) == 0
    points = events_of(tmp_path / "whole", "ended")[0]["points"]
    assert points > 100
    died_at = set()
    for target in random.Random(points + power_fails).sample(range(1, points + 1), min(tries, points)):
        folder = tmp_path / f"at-{target}"
        assert os.WTERMSIG(play(folder, kind, target)) == signal.SIGKILL
        died_at.add(events_of(folder, "dies")[0]["point"])
        if power_fails:
            lose_power(folder, random.Random(target))
        check(folder, kind)
    assert len(died_at) == POINT_NAMES if tries >= points else len(died_at) > POINT_NAMES // 2, died_at
    print(f"{kind}: {min(tries, points)} of {points} points, 0 versions lost, 0 torn, 0 slots lost")


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


def check(folder: Path, kind: str) -> None:
    """Opens the store as a restarted service does: sound, whole, without leaks, and able to go on."""
    clock = ManualClock(CLOCK_START_MS)
    store = Store(open_kv(folder / "store" / "index", kind), folder / "store", LIMITS, clock)
    try:
        assert verify_index(store.index) == []
        check_versions(store, folder)
        clock.advance(10_000)
        store.collector.collect()
        assert verify_index(store.index) == []
        check_versions(store, folder)
        check_leaks(store)
        check_goes_on(store)
    finally:
        store.close()


def check_versions(store: Store, folder: Path) -> None:
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
    for session_id, row in store.index.sessions():
        assert acknowledged.get(session_id, 0) <= row.version <= begun.get(session_id, 0)
        assert row.durable_version >= durable.get(session_id, 0)
        for entry in store.index.chain(session_id):
            state = state_of(entry.version)
            manifest = state.manifest(session_id, entry.row.parent, entry.row.epoch, entry.row.execution_id)
            assert store.sessions.manifest(session_id, entry.version, 0).manifest == manifest
            assert store.units.get([key for key, _ in state.unit_pairs()]) == list(state.units.values())
            if entry.row.durable:
                regions = [Region(*key) for key, _ in state.region_chunks()]
                assert store.regions.get(regions) == list(state.regions.values())
    assert acknowledged.keys() <= {session_id for session_id, _ in store.index.sessions()}


def check_leaks(store: Store) -> None:
    """After a collection only what versions name takes room, in the accounts and on the disk."""
    rows = [RegionRow.decode(row) for _, row in scan_all(store.index.kv, keys.REGION)]
    slots = {row.slot for row in rows if row.slot is not None}
    named = {
        region.region_id
        for session_id, _ in store.index.sessions()
        for entry in store.index.chain(session_id)
        for region in map(region_of, state_of(entry.version).regions.values())
    }
    assert len(rows) <= len(named)
    allocated = {store.files.allocate() for _ in range(20)}
    assert not allocated & slots and min(allocated) <= len(slots), "a slot is lost"
    store.files.free(allocated)
    disk_bytes = sum(path.stat().st_blocks * 512 for path in store.files.path_of(0)[0].parent.iterdir())
    live_bytes = sum(-(-row.length_bytes // 4096) * 4096 for row in rows if row.slot is not None)
    assert disk_bytes <= live_bytes + 64 * 1024


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
