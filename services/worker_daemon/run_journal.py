"""The cells that workers of this host run, on disk, for the daemon that comes after this one (design §5)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

import structlog

from looseleaf.errors import Unavailable
from looseleaf.folder_lock import lock_folder
from looseleaf.ids import ExecutionId
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import LEASES_MAX, HeldLease

log = structlog.get_logger()

# Each cell that runs has a lease.
RUNS_MAX: Final = LEASES_MAX
ENTRY_BYTES_MAX: Final = 64 << 10
_UNSTARTED: Final = ".unstarted"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class RunJournal:
    """Small files in `folder`: for each cell that is made ready, and from its hand-over until its outcome is known.

    Written without a sync: it is of use only to a daemon of the same boot. `socket_path`: where that will listen.
    `unstarted`: cells that the last daemon was making ready when it ended. None of their statements has run, nor will.
    """

    def __init__(self, folder: Path, socket_path: str) -> None:
        self.socket_path = socket_path
        self.boot_id = _BOOT_ID.read_text().strip()
        self._folder = folder
        self._lock: IO[str] | None = None
        self.unstarted: frozenset[ExecutionId] = frozenset()

    def lock(self) -> None:
        """Takes the folder for this daemon's life: who reads it may end the workers that it names.

        Raises Unavailable `HOST_TAKEN` if another daemon has it.
        """
        self._lock = lock_folder(self._folder, "lock")
        if self._lock is None:
            text = f"another daemon of this host uses {self._folder}; give each its own --host-id or --data"
            raise Unavailable("HOST_TAKEN", text)
        self.unstarted = self._take_unstarted()

    def unlock(self) -> None:
        """Another daemon may have it. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def begin(self, execution_id: ExecutionId) -> None:
        """A worker is made ready for the cell. Never raises: unwritten, the cell counts as one that may have run."""
        try:
            self._unstarted_path(execution_id).write_text(self.boot_id)
        except OSError as error:
            log.warning("run_not_begun", execution=execution_id, error=error.strerror)

    def hand_over(self, execution_id: ExecutionId) -> None:
        """From here on the cell may run. Raises OSError; then it must not, for the next daemon would say it had not."""
        self._unstarted_path(execution_id).unlink(missing_ok=True)

    def open(self, run: OpenRun) -> None:
        """The run was handed over, or goes on under this daemon. Raises OSError."""
        path = self._path(run.lease.execution_id)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(run)))
        part.rename(path)

    def close(self, execution_id: ExecutionId) -> None:
        """The run's outcome is known. Idempotent; never raises."""
        try:
            self._path(execution_id).unlink(missing_ok=True)
            self._unstarted_path(execution_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning("run_not_closed", execution=execution_id, error=error.strerror)

    def runs(self) -> list[OpenRun]:
        """What was open when the last daemon ended. A file that cannot be read is dropped: its worker ends itself."""
        found = []
        for path in sorted(self._folder.glob("*.json"))[:RUNS_MAX]:
            try:
                found.append(_read(path))
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                log.warning("run_unreadable", file=path.name, error=type(error).__name__)
                path.unlink(missing_ok=True)
        return found

    def _take_unstarted(self) -> frozenset[ExecutionId]:
        """Once: a file of another boot may have come back with the disk, for a cell that was handed over."""
        found: set[ExecutionId] = set()
        for path in sorted(self._folder.glob(f"*{_UNSTARTED}")):
            try:
                if path.read_text() == self.boot_id and len(found) < RUNS_MAX:
                    found.add(ExecutionId(path.stem))
                path.unlink()
            except (OSError, ValueError) as error:
                log.warning("run_unreadable", file=path.name, error=type(error).__name__)
        return frozenset(found)

    def _unstarted_path(self, execution_id: ExecutionId) -> Path:
        return self._folder / f"{execution_id}{_UNSTARTED}"

    def _path(self, execution_id: ExecutionId) -> Path:
        return self._folder / f"{execution_id}.json"


def _read(path: Path) -> OpenRun:
    with path.open("rb") as file:
        entry: dict[str, Any] = json.loads(file.read(ENTRY_BYTES_MAX))
    lease = entry.pop("lease")
    run = OpenRun(lease=HeldLease(**{**lease, "gpus": tuple(lease["gpus"])}), **entry)
    if type(run.pid) is not int or run.pid <= 1:
        raise ValueError("no worker has such a pid")
    return run
