"""The save of a cell that has ended, by whichever daemon is there (design §3: Save; §5)."""

from __future__ import annotations

import time
from typing import Final

from looseleaf.checkpoint.reports import SaveReport
from looseleaf.errors import Conflict, Unavailable
from looseleaf.ids import CellId, ExecutionId
from looseleaf.protocol.frames import Message
from looseleaf.protocol.state_io import STATE_TIMEOUT_S, LinkStateIO
from looseleaf.worker.graphs import close_graphs
from looseleaf.worker.lasting_link import LastingLink
from looseleaf.worker.leftovers import anonymous_bytes
from looseleaf.worker.shell import WorkerShell
from looseleaf.worker.stages import WorkerState
from looseleaf.worker.unsaved import unsaved_rows

# The daemon's clock of a save starts with its cell's end; after its limit the worker is killed.
MARGIN_S: Final = 60.0


class CellSaver:
    """Saves cells of `state`. Made after the fork, before anything of the session is loaded: `io` is on `link`."""

    def __init__(self, shell: WorkerShell, link: LastingLink, io: LinkStateIO, state: WorkerState) -> None:
        self._shell = shell
        self._link = link
        self._linked = link.current
        self._io = io
        self._state = state
        # What the zygote had; a worker holds only what came since.
        self._anonymous_bytes_at_birth = anonymous_bytes()

    def limit(self, save_limit_s: float) -> None:
        """The daemon ends a save after so long: no request of one is given up before."""
        self._io.timeout_s = max(STATE_TIMEOUT_S, save_limit_s + MARGIN_S)

    def save(self, execution_id: ExecutionId, source: str, cell_id: str, *, left: bool) -> Message:
        """The reply of `run`. A daemon that goes meanwhile has the next one begin anew. Raises the save's error."""
        again = False
        while True:
            self.follow_link()
            try:
                return self._save_or_follow(execution_id, source, cell_id, left=left, again=again)
            except Unavailable as error:
                if error.reason != "PEER_CLOSED":
                    raise
                self._link.renewed(self._linked)
                again = True

    def _save_or_follow(
        self, execution_id: ExecutionId, source: str, cell_id: str, *, left: bool, again: bool
    ) -> Message:
        try:
            return self._save(execution_id, source, cell_id, left=left)
        except Conflict:
            # The last daemon's commit may have come through, and only its answer not.
            if not again or (version := self._state.follow_own(execution_id)) is None:
                raise
        unsaved = self._state.tracker.manifest.unsaved
        return self._reply(SaveReport(version, unsaved=unsaved), time.monotonic())

    def follow_link(self) -> None:
        """The session's state goes by the connection to the daemon that there is."""
        if self._linked is not self._link.current:
            # The ring and the arena of a daemon that is gone are of no use to the next one.
            self._io.close()
            self._linked = self._link.current
            self._io = LinkStateIO(self._linked, self._io.timeout_s)
            self._state.use(self._io)

    def _save(self, execution_id: ExecutionId, source: str, cell_id: str, *, left: bool) -> Message:
        self._state.own_files.note()
        tracker = self._state.tracker
        began_s = time.monotonic()
        report = tracker.save(execution_id, "gpu", source=source, cell_id=CellId(cell_id))
        if not left:
            # A thread that the cell left may be about to go back through one.
            close_graphs(self._shell.user_ns, tracker.hidden, tracker.manifest)
        return self._reply(report, began_s)

    def _reply(self, report: SaveReport, began_s: float) -> Message:
        return {
            "version": report.version,
            "durable": self._io.durable_version >= report.version,
            "dirty_regions": report.dirty_regions,
            "total_regions": report.total_regions,
            "bytes_moved": report.bytes_moved,
            "save_ms": (time.monotonic() - began_s) * 1000,
            "unsaved": unsaved_rows(report.unsaved, self._state.tracker.unsaved_here, self._shell.user_ns),
            "resident_bytes": max(0, anonymous_bytes() - self._anonymous_bytes_at_birth),
        }
