"""A control group for each worker, so that a cell that takes too much costs its own worker only (design §10)."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from looseleaf.services.worker_daemon.memory_guard import MemoryGuard, own_groups

log = structlog.get_logger()

_ROOT: Final = Path("/")
# Groups whose last process is not quite gone, to be removed later.
LEFT_MAX: Final = 64


@dataclass(frozen=True)
class MemoryGroup:
    """One worker's group. `guard`: what the system counts of it."""

    folder: Path
    guard: MemoryGuard

    @property
    def processes(self) -> str:
        """The file that a process joins the group by."""
        return str(self.folder / "cgroup.procs")

    def peak_bytes(self) -> int:
        """The most memory that the group had at once; 0 if the system does not tell."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with suppress(OSError, ValueError):
                return int((self.folder / name).read_text())
        return 0

    def remove(self) -> bool:
        """Ends what is left in it and removes it; False if that takes longer."""
        try:
            for line in (self.folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(line), signal.SIGKILL)
            self.folder.rmdir()
        except OSError:
            return not self.folder.exists()
        return True


class MemoryGroups:
    """Makes groups that may have `limit_bytes` each, where the system lets this process make some.

    `owner`: part of their names; one that was left by an owner of the same name, such as a daemon that was killed, is
    removed with the first group that is made.
    """

    def __init__(self, limit_bytes: int, root: Path = _ROOT, owner: str = "own") -> None:
        self.limit_bytes = limit_bytes
        self._root = root
        self._prefix = f"looseleaf-{owner}-"
        self._left: list[MemoryGroup] = []
        self._refused = False
        self._swept = False

    def make(self, name: str) -> MemoryGroup | None:
        """A new group; None if the system refuses, which is logged once."""
        self._left = [group for group in self._left if not group.remove()]
        if self._refused:
            return None
        for parent, events, limit in _parents(self._root):
            self._sweep(parent)
            folder = parent / f"{self._prefix}{name}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                (folder / limit).write_text(str(self.limit_bytes))
            except OSError:
                folder.rmdir()
                continue
            # Without it what is above the limit goes to the disk, and the cell crawls instead of being told.
            for swap, value in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", self.limit_bytes)):
                with suppress(OSError):
                    if (folder / swap).exists():
                        (folder / swap).write_text(str(value))
            self._swept = True
            return MemoryGroup(folder, MemoryGuard(folder / events, folder / limit))
        self._refused = True
        log.warning("no_memory_groups", instead="the daemon looks at the memory of its workers")
        return None

    def find(self, name: str) -> MemoryGroup | None:
        """The group that an owner of this name has made before; None if there is none."""
        for parent, events, limit in _parents(self._root):
            folder = parent / f"{self._prefix}{name}"
            if (folder / limit).exists():
                return MemoryGroup(folder, MemoryGuard(folder / events, folder / limit))
        return None

    def _sweep(self, parent: Path) -> None:
        if self._swept:
            return
        for folder in parent.glob(f"{self._prefix}*"):
            # Only an empty one goes: a worker that outlives its daemon for a moment keeps its own.
            with suppress(OSError):
                folder.rmdir()

    def drop(self, group: MemoryGroup) -> None:
        """Its worker has ended."""
        if not group.remove() and len(self._left) < LEFT_MAX:
            self._left.append(group)


def _parents(root: Path) -> list[tuple[Path, str, str]]:
    """(folder to make groups in, file of events, file of the limit), the nearest first.

    Version 2 limits only groups whose parent hands the controller down, which none can that has processes itself.
    """
    found = []
    for folder, events, limit in own_groups(root):
        if limit != "memory.max":
            found.append((folder, events, limit))
            continue
        for parent in (folder, folder.parent):
            with suppress(OSError):
                if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                    found.append((parent, events, limit))
    return found
