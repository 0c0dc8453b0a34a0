"""A session's life against a real store on disk that dies by SIGKILL at one chosen point between two system calls.

Run as a program it forks a player for each JSON line that it reads and answers, when the player is dead, with its wait
status. A player writes a line into its log *after* each thing that the store acknowledged, and a line for each byte
range that only the page cache holds, so that the test can also take away what a loss of power would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from looseleaf.clock import ManualClock
from looseleaf.kv import Batch, KvBackend
from looseleaf.kv.opening import open_kv
from looseleaf.kv.rocksdb_py import open_rocksdb_py
from looseleaf.services.checkpoint_store.disk import Disk
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import Store, StoreLimits

from .conftest import Saver, State, make_state

LIMITS = StoreLimits(versions_kept_max=2, orphan_grace_s=60)
CLOCK_START_MS = 1_000_000
# Regions of one file system block and a bit, so that a torn one can be told from a whole one.
REGION_REPEATS = 3_000


@dataclass
class Log:
    """What the player tells the test. A line that was written survives the player."""

    path: Path
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, **facts: Any) -> None:
        os.write(self.fd, (json.dumps({"kind": kind, **facts}) + "\n").encode())


class Points:
    """Counts the points at which a player may die, and dies at the chosen one."""

    def __init__(self, log: Log, target: int) -> None:
        self._log = log
        self._target = target
        self.reached: list[str] = []

    def pass_(self, name: str) -> None:
        if self.at(name):
            self.die()

    def at(self, name: str) -> bool:
        self.reached.append(name)
        if len(self.reached) == self._target:
            self._log.note("dies", point=name)
            return True
        return False

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class MortalDisk:
    """The real disk, with a point before, in the middle of and after each call that changes it."""

    def __init__(self, points: Points, log: Log) -> None:
        self._points = points
        self._log = log

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._points.pass_("before a region's bytes")
        name = os.readlink(f"/proc/self/fd/{fd}")
        self._log.note("written", file=name, offset=offset, length=len(data))
        if self._points.at("within a region's bytes"):
            os.pwrite(fd, data[: len(data) // 2], offset)
            self._points.die()
        # A short write, which the store must continue.
        done = os.pwrite(fd, data[: max(1, len(data) * 2 // 3)], offset)
        self._points.pass_("after a region's bytes")
        return done

    def fdatasync(self, fd: int) -> None:
        self._points.pass_("before the sync of a file")
        os.fdatasync(fd)
        self._log.note("synced", file=os.readlink(f"/proc/self/fd/{fd}"))
        self._points.pass_("after the sync of a file")


class MortalKv:
    """A real database with a point before and after each write and flush."""

    def __init__(self, kv: KvBackend, points: Points) -> None:
        self._kv = kv
        self._points = points
        self.get, self.multi_get, self.scan, self.close = kv.get, kv.multi_get, kv.scan, kv.close

    def write(self, batch: Batch, *, durable: bool = False) -> None:
        self._points.pass_("before a batch")
        self._kv.write(batch, durable=durable)
        self._points.pass_("after a batch")

    def flush(self) -> None:
        self._points.pass_("before a flush")
        self._kv.flush()
        self._points.pass_("after a flush")


def open_index(path: Path, kind: str, log: Log) -> KvBackend:
    """The database of that kind; of the default kind every sync of its log is noted, for what follows can be lost."""
    if kind != "rocksdb-py":
        return open_kv(path, kind)

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        log.note("log synced", file=os.readlink(f"/proc/self/fd/{fd}"), length=os.fstat(fd).st_size)

    return open_rocksdb_py(path, sync)


def state_of(number: int) -> State:
    """The state that a session's version `number` holds: half of it is that of the version before."""
    texts = [f"{number - number % 2}", f"{number}x", "always"]
    state = make_state(texts, texts, REGION_REPEATS)
    return State(state.units, {**state.regions, "zeros": bytes(REGION_REPEATS)})


class Player:
    """Sessions of two tenants that save the same, in both ways, are pruned, collected and deleted."""

    def __init__(self, store: Store, clock: ManualClock, log: Log) -> None:
        self._store = store
        self._clock = clock
        self._log = log

    def play(self) -> None:
        first = Saver(self._store, "s-first", host_id="h-one")
        second = Saver(self._store, "s-second", host_id="", tenant="other")
        self._log.note("opened", session="s-first")
        for number in range(1, 5):
            self._save(first, number, staged=number % 2 == 0)
        self._save(second, 1, staged=False)
        self._collect()
        self._log.note("deleting", session="s-second")
        self._store.sessions.delete("s-second", "r-delete")
        self._log.note("deleted", session="s-second")
        self._collect()
        self._save(first, 5, staged=False)
        self._collect()

    def _save(self, saver: Saver, number: int, *, staged: bool) -> None:
        """Staged: the bytes reach the disk after the commit, as a daemon writes them behind."""
        state = state_of(number)
        if not staged:
            self._upload(saver, state)
        self._log.note("saving", session=saver.session_id, version=number)
        version = saver.save(state, host_id="h-one" if staged else "")
        self._log.note("saved", session=saver.session_id, version=version, durable=not staged)
        if staged:
            self._upload(saver, state)
            durable, _missing = self._store.commits.mark_durable(saver.session_id, version)
            assert durable
            self._log.note("saved", session=saver.session_id, version=version, durable=True)

    def _upload(self, saver: Saver, state: State) -> None:
        upload = self._store.regions.begin_upload(saver.tenant, sum(map(len, state.regions.values())))
        for key, data in state.region_chunks():
            upload.add([(Region(*key), data)])
        upload.finish()

    def _collect(self) -> None:
        self._clock.advance(120)
        self._store.collector.collect()


def play(folder: Path, kind: str, target: int) -> list[str]:
    """Plays until point `target`, counted from 1 (0: to the end); returns the names of the points there were."""
    log = Log(folder / "log")
    points = Points(log, target)
    disk = MortalDisk(points, log)
    clock = ManualClock(CLOCK_START_MS)
    kv = MortalKv(open_index(folder / "store" / "index", kind, log), points)
    (folder / "store").mkdir(exist_ok=True)
    store = Store(kv, folder / "store", LIMITS, clock, Disk(disk.pwrite, os.pread, disk.fdatasync))
    Player(store, clock, log).play()
    store.close()
    return points.reached


def main(lines: Sequence[str] | Any) -> None:
    """The nursery: one player for each line, dead when it is answered."""
    for line in lines:
        wanted = json.loads(line)
        pid = os.fork()
        if pid == 0:
            reached = play(Path(wanted["folder"]), wanted["kind"], wanted["target"])
            Log(Path(wanted["folder"]) / "log").note("ended", points=reached)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main(sys.stdin)
