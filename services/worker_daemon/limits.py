"""What workers of this host may have: a user of their own, memory, files, processes (design §10)."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from looseleaf.errors import PreconditionFailed
from looseleaf.protocol.confinement import CONFINEMENT_VARIABLE, Confinement
from looseleaf.services.worker_daemon.memory_groups import MemoryGroup, MemoryGroups

log = structlog.get_logger()


@dataclass(frozen=True)
class WorkerUser:
    """Whom workers run as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str

    @classmethod
    def find(cls, text: str) -> WorkerUser | None:
        """The user of this name or number; None for an empty text or the daemon's own.

        Raises PreconditionFailed `WORKER_USER_REFUSED`: there is none, or only root may run something as another.
        """
        if not text:
            return None
        try:
            row = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        except KeyError:
            raise PreconditionFailed("WORKER_USER_REFUSED", f"this host has no user {text}") from None
        if row.pw_uid == os.geteuid():
            return None
        if os.geteuid() != 0:
            raise PreconditionFailed("WORKER_USER_REFUSED", f"only a daemon of root can run workers as {text}")
        groups = tuple(os.getgrouplist(row.pw_name, row.pw_gid))
        return cls(row.pw_uid, row.pw_gid, groups, row.pw_dir, row.pw_name)

    def may_enter(self, folder: Path) -> bool:
        """Whether it may use what lies in `folder`, by the rights of all folders down to it."""
        return all(self._may_pass(each) for each in (folder.absolute(), *folder.absolute().parents))

    def _may_pass(self, folder: Path) -> bool:
        try:
            found = folder.stat()
        except OSError:
            return False
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid in (self.gid, *self.groups):
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


@dataclass(frozen=True)
class Confined:
    """One worker's part. `env`: for its FORK."""

    env: dict[str, str]
    group: MemoryGroup | None = None


@dataclass
class Confiner:
    """Makes each worker's part of the host's limits. Limits of 0 are none.

    `withheld`: variables of the daemon's environment that no zygote sees, for workers of the daemon's own user.
    """

    user: WorkerUser | None = None
    memory_bytes: int = 0
    open_files: int = 0
    processes: int = 0
    withheld: dict[str, str] = field(default_factory=dict)
    groups: MemoryGroups | None = None
    # Names its control groups: another daemon's are not its own to remove.
    owner: str = "own"

    def __post_init__(self) -> None:
        if self.memory_bytes and self.groups is None:
            self.groups = MemoryGroups(self.memory_bytes, owner=self.owner)

    def confine(self, worker_id: str) -> Confined:
        """For a new worker; `free` gives back what is the worker's alone."""
        group = self.groups.make(worker_id) if self.groups is not None else None
        user = self.user
        wanted = Confinement(
            *((user.uid, user.gid, user.groups, user.home, user.name) if user is not None else (0, 0, (), "", "")),
            open_files=self.open_files, processes=self.processes, cgroup=group.processes if group is not None else "",
        )  # fmt: skip
        return Confined({CONFINEMENT_VARIABLE: wanted.text()}, group)

    def confined(self, worker_id: str) -> Confined:
        """What an earlier daemon of this host has made for a worker that lives on."""
        return Confined({}, self.groups.find(worker_id) if self.groups is not None else None)

    def free(self, confined: Confined) -> None:
        """The worker has ended."""
        if confined.group is not None and self.groups is not None:
            self.groups.drop(confined.group)

    @property
    def environment(self) -> list[tuple[bytes, bytes]]:
        """Names and values that workers get by their own connection, past their zygote; not all are text."""
        if self.user is not None:
            return []
        return [(os.fsencode(name), os.fsencode(value)) for name, value in self.withheld.items()]
