"""A cell that began under this host's last daemon, from where its worker was let in to its end (design §5)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import msgpack
import structlog

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.errors import LooseLeafError, NotFound, Unavailable
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.adoption import Found
from looseleaf.services.worker_daemon.core.adoption import OpenRun, SessionHead
from looseleaf.services.worker_daemon.execution import CellExecution, HostFacts
from looseleaf.services.worker_daemon.execution_figures import CellTimes
from looseleaf.services.worker_daemon.execution_log import LIFE_MESSAGES, ExecutionRecord
from looseleaf.services.worker_daemon.host import Host
from looseleaf.services.worker_daemon.pool import WorkerPool
from looseleaf.services.worker_daemon.reports import Reporter
from looseleaf.services.worker_daemon.run_journal import RunJournal
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.worker_process import WorkerLimits, WorkerProcess
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()


async def head_of(store: StoreClient, session_id: SessionId) -> SessionHead | None:
    """The newest version of the session; None if the store has none. Raises the store's error."""
    try:
        answer = await store.manifest(session_id)
    except NotFound:
        return None
    execution_id = decode_manifest(answer.manifest).execution_id if answer.manifest else ExecutionId("")
    return SessionHead(Epoch(answer.head.epoch), Version(answer.version), execution_id)


class AdoptedExecution(CellExecution):
    """As CellExecution, of a cell that its worker has been running.

    Where its worker fails, the store tells whether its changes were saved: the last daemon may have done it.
    """

    adopted = True

    def __init__(
        self,
        run: OpenRun,
        worker: WorkerProcess,
        started_s: float | None,
        pool: WorkerPool,
        reporter: Reporter,
        host: HostFacts,
        finish_lease: Callable[[], None],
        journal: RunJournal,
    ) -> None:
        lease = run.lease
        start = pb.ExecuteStart(
            execution_id=lease.execution_id, lease_id=lease.lease_id, session_id=lease.session_id, epoch=lease.epoch,
            version=run.version, execution_count=run.execution_count, elapsed_ms=run.elapsed_ms,
            context=msgpack.packb({"keep_s": run.keep_s}),
        )  # fmt: skip
        record = ExecutionRecord(lease.execution_id, begin=run.lives * LIFE_MESSAGES)
        super().__init__(start, lease, record, pool, reporter, host, finish_lease, journal)
        self._times = CellTimes(run.elapsed_ms, lease.granted_s, run.arrived_s)
        self._path = run.path
        self._keep_s = run.keep_s
        self._handed_over = True
        self._worker: WorkerProcess = worker
        self._found = Version(0)
        if started_s is not None:
            self._times.started(started_s)
        self._hear(worker)

    async def _run_on_live_worker(self, saved: pb.CellSaved) -> None:
        worker = self._worker
        try:
            async with self._pool.held(worker):
                await self._end_on(await worker.resume(self.lease.execution_id), saved)
        except Exception:
            # Before the store is asked: nothing that it tells may change after.
            await worker.discard()
            await self._look_for_commit()
            raise

    async def _look_for_commit(self) -> None:
        try:
            head = await head_of(self._worker.requests.store, self.lease.session_id)
        except LooseLeafError as error:
            log.warning("commit_not_looked_for", execution=self.lease.execution_id, reason=error.reason)
            if self._times.ended_s is not None:
                # The last daemon may have sent it.
                self._worker.requests.owner.unanswered = self.lease.execution_id
            return
        if head is not None and head.execution_id == self.lease.execution_id:
            self._found = head.version

    def _committed_version(self) -> Version:
        return super()._committed_version() or self._found


async def adopt(
    found: Found, host: Host, new_requests: Callable[[StateOwner], StateRequests], limits: WorkerLimits
) -> AdoptedExecution:
    """The worker goes on, under its lease, which is held here. Raises a LooseLeafError; then it is to be ended."""
    run, lease, journal = found.run, found.run.lease, host.journal
    assert journal is not None
    log_reader = await _welcome(found)
    try:
        journal.open(replace(run, lives=run.lives + 1))
    except OSError as error:
        log.warning("run_not_journaled", execution=lease.execution_id, error=error.strerror)
    requests = new_requests(StateOwner(lease.session_id, lease.epoch))
    worker = WorkerProcess.adopted(run.facts(), found.channel, log_reader, requests, found.process, limits)
    host.pool.take_in(worker)
    log.info(
        "worker_adopted", worker=run.worker_id, session=lease.session_id, execution=lease.execution_id, pid=run.pid
    )
    return AdoptedExecution(
        run, worker, found.started_s, host.pool, host.reporter, host.facts,
        lambda: host.leases.finish(lease.lease_id), journal,
    )  # fmt: skip


async def _welcome(found: Found) -> int:
    """Where the worker's log is read from. Raises Unavailable `PEER_CLOSED`, or `FORK_FAILED` without descriptors."""
    try:
        log_reader, log_writer = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable("FORK_FAILED", f"no pipe for a worker's log: {error.strerror}") from error
    try:
        await found.welcome(log_writer)
    except BaseException:
        os.close(log_reader)
        raise
    finally:
        os.close(log_writer)
    return log_reader
