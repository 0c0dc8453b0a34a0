"""Processes that map the arena and that nobody here knows: forked children that have outlived their kernel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import structlog

from looseleaf.services.worker_daemon.peer_process import PeerProcess

log = structlog.get_logger()

_PROC = Path("/proc")
# A process whose parents are deeper is taken for nobody's: its mapping is waited for.
_ANCESTORS_MAX = 64
LOOK_RETRY_S: Final = 1.0


async def orphans_gone(inodes: Collection[int], live: Callable[[], Collection[int]]) -> None:
    """Returns when no process maps the memory files `inodes` but this one, those of `live` and what these started.

    `live` names this daemon's workers too: where the daemon is process 1, it adopts whatever lost its parent, and so
    being its child tells nothing. While /proc or a process cannot be looked at, for want of file descriptors, the
    look is repeated.

    A kernel's forked children have its mappings: the slots behind them must not be reused while one of them lives.
    Processes of other users cannot be looked into unless this one is root's; kernels run as their daemon's user.
    """
    while True:
        try:
            found = await asyncio.to_thread(_orphans, frozenset(inodes), frozenset(live()))
            # A worker that began meanwhile is none.
            orphans = [pid for pid in found if pid not in live()]
            if not orphans:
                return
            log.info("arena_mapped_by_orphans", pids=orphans)
            await _all_exited(orphans)
        except OSError as error:
            log.warning("arena_mappers_not_seen", error=error.strerror)
            await asyncio.sleep(LOOK_RETRY_S)


async def _all_exited(pids: Iterable[int]) -> None:
    with ExitStack() as watches:
        watched = [watches.enter_context(closing(PeerProcess.of(pid))) for pid in pids]
        await asyncio.gather(*(process.exited() for process in watched))


def _orphans(inodes: frozenset[int], live: frozenset[int]) -> list[int]:
    known = live | {os.getpid()}
    return [pid for pid in _mappers(inodes) if known.isdisjoint([pid, *_ancestors(pid)])]


def _mappers(inodes: frozenset[int]) -> Iterator[int]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and _maps_any(int(entry), inodes):
            yield int(entry)


def _maps_any(pid: int, inodes: frozenset[int]) -> bool:
    try:
        with open(_PROC / str(pid) / "maps", "rb") as maps:
            # Address, rights, offset, device, inode, name: see proc(5).
            return any(b"/memfd:looseleaf-arena" in line and int(line.split(None, 5)[4]) in inodes for line in maps)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # it has ended, or is another user's


def _ancestors(pid: int) -> Iterator[int]:
    for _ in range(_ANCESTORS_MAX):
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return
        # Behind the name, which may hold anything: state, parent.
        pid = int(stat.rpartition(b")")[2].split()[1])
        if pid <= 1:
            return
        yield pid
