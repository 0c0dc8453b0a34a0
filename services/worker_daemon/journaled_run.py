"""One cell in its host's journal of runs, from its preparation to its outcome (design §5)."""

from __future__ import annotations

import structlog

from looseleaf.ids import Version
from looseleaf.services.worker_daemon.core.adoption import OpenRun
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.services.worker_daemon.execution_figures import CellTimes
from looseleaf.services.worker_daemon.process_stat import process_ticks
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()


class JournaledRun:
    """What the host's next daemon finds of the cell if this one is lost; `journal` None: nothing."""

    def __init__(self, journal: RunJournal | None, lease: HeldLease) -> None:
        self._journal = journal
        self._lease = lease

    def begin(self) -> None:
        """A worker is made ready for the cell."""
        if self._journal is not None:
            self._journal.begin(self._lease.execution_id)

    def hand_over(
        self, start: pb.ExecuteStart, facts: WorkerFacts, times: CellTimes, path: str, keep_s: float
    ) -> str:
        """From here on the cell may run. Where its worker looks for the host's next daemon if this one is lost; empty
        if that would not find the cell.

        Raises OSError; then it must not be run, for the next daemon would say that it had not been.
        """
        journal, lease = self._journal, self._lease
        if journal is None:
            return ""
        journal.hand_over(lease.execution_id)
        ticks = process_ticks(facts.pid)
        if ticks is None or not journal.socket_path:
            return ""
        run = OpenRun(
            lease, Version(start.version), start.execution_count, keep_s, start.elapsed_ms, times.arrived_s, path,
            facts.worker_id, facts.pid, ticks, journal.boot_id, journal.socket_path, facts.environment_id,
            facts.kernel_environment_id, lives=1,
        )  # fmt: skip
        try:
            journal.open(run)
        except OSError as error:
            log.warning("run_not_journaled", execution=lease.execution_id, error=error.strerror)
            return ""
        return journal.socket_path

    def close(self) -> None:
        """Its outcome is known. Idempotent."""
        if self._journal is not None:
            self._journal.close(self._lease.execution_id)
