"""WorkerDaemonService: what the scheduler and other daemons ask of this host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import structlog

from looseleaf.errors import Conflict, InvalidArgument, LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, WorkerId
from looseleaf.logs import log_context
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage
from looseleaf.services.worker_daemon.execution import CellExecution
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.services.worker_daemon.gpu_room import cleared
from looseleaf.services.worker_daemon.host import Host
from looseleaf.services.worker_daemon.opening import Opening
from looseleaf.services.worker_daemon.preparation import prepare_ahead
from looseleaf.services.worker_daemon.run_relay import REJOIN_S
from looseleaf.v1 import checkpoint_pb2, scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceServicer

log = structlog.get_logger()

REGIONS_PER_FETCH_MAX = 100_000
# Other hosts' streams at once; what comes beyond waits for its turn within its deadline.
FETCHES_MAX = 8
# A cell that nobody listens to ends after so long: longer than a caller that only lost its connection tries.
ABANDONED_S = REJOIN_S + 10.0
# One that began under an earlier daemon: its kernel, which has lost its daemon too, comes back within a minute.
ADOPTED_S = ABANDONED_S + 20.0
SAVE_AT_STOP_S = 5.0


class WorkerDaemonServicer(WorkerDaemonServiceServicer):
    """Thin: checks requests, hands them to the host's parts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._memory = RequestMemory()
        self._running: dict[ExecutionId, CellExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers_may_come = False
        self._fetches = asyncio.Semaphore(FETCHES_MAX)

    async def GrantLease(self, request: pb.GrantLeaseRequest, context: Any) -> pb.GrantLeaseResponse:
        """See the proto. The lease's clock starts here. Raises InvalidArgument `LEASE_MALFORMED`."""
        self._host.leases.grant(_held_lease(request.lease, time.monotonic()))
        return pb.GrantLeaseResponse()

    async def RevokeLease(self, request: pb.RevokeLeaseRequest, context: Any) -> pb.RevokeLeaseResponse:
        """See the proto."""
        return pb.RevokeLeaseResponse(in_use=self._host.leases.revoke(LeaseId(request.lease_id)))

    async def PrepareWorker(self, request: pb.PrepareWorkerRequest, context: Any) -> pb.PrepareWorkerResponse:
        """See the proto; the same request id again gets the first answer."""

        async def work() -> pb.PrepareWorkerResponse:
            prepared = await prepare_ahead(
                self._host.pool,
                WorkerId(request.worker_id) if request.worker_id else None,
                SessionId(request.session_id),
                Epoch(request.epoch),
                request.recipe if request.HasField("recipe") else None,
                self._opening(request),
            )
            facts = prepared.worker.facts
            stage = facts.prepared_stage
            return pb.PrepareWorkerResponse(
                worker_id=facts.worker_id, pid=facts.pid, stage_ms=prepared.stage_ms,
                mapped_bytes=prepared.mapped_bytes, stage=scheduler_pb2.WorkerStage.Name(int(stage)),
                gpu_indices=facts.opened_gpus if stage is not Stage.HOST_READY else (),
            )

        response: pb.PrepareWorkerResponse = await self._memory.once(request, work)
        return response

    def _opening(self, request: pb.PrepareWorkerRequest) -> Opening:
        """How far to go. Raises PreconditionFailed `GPU_UNKNOWN`."""
        host, gpus = self._host, tuple(request.gpu_indices)
        if not gpus or int(request.stage) not in (Stage.CONTEXT_READY, Stage.DEVICE_READY):
            return Opening(leave=request.leave_device)
        if max(gpus) >= host.gpu_count:
            text = f"this host has {host.gpu_count} GPUs, not one numbered {max(gpus)}"
            raise PreconditionFailed("GPU_UNKNOWN", text)

        def leased(wanted: Collection[int]) -> bool:
            held = (lease.gpus for lease in host.leases.held() if not lease.finished)
            return any(not set(wanted).isdisjoint(gpus) for gpus in held)

        return Opening(Stage(request.stage), gpus, host.facts.device, host.facts.emulated_delays, leased,
            partial(cleared, host.pool))

    async def EvictWorker(self, request: pb.EvictWorkerRequest, context: Any) -> pb.EvictWorkerResponse:
        """See the proto."""
        evicted = await self._host.pool.evict_for_others(WorkerId(request.worker_id), Epoch(request.epoch))
        return pb.EvictWorkerResponse(evicted=evicted)

    async def EvictSession(self, request: pb.EvictSessionRequest, context: Any) -> pb.EvictSessionResponse:
        """See the proto; idempotent by nature."""
        return pb.EvictSessionResponse(evicted=await self._host.pool.evict_session(SessionId(request.session_id)))

    async def ReleaseUnsaved(self, request: pb.ReleaseUnsavedRequest, context: Any) -> pb.ReleaseUnsavedResponse:
        """See the proto; idempotent by nature. Of another session's worker nothing is released."""
        self._host.pool.release_unsaved(WorkerId(request.worker_id), SessionId(request.session_id), request.names)
        return pb.ReleaseUnsavedResponse()

    async def Execute(
        self, requests: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteResponse]:
        """See the proto. One that comes back hears everything again; a cell that all callers left for good is ended."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            raise InvalidArgument("EXECUTE_MALFORMED", "the first message of Execute is `start`")
        execution_id = ExecutionId(first.start.execution_id)
        if self._host.returning is not None:
            await self._host.returning.known(execution_id)
        record = self._host.executions.get(execution_id)
        if record is None and self._host.journal is not None and execution_id in self._host.journal.unstarted:
            text = "the host's daemon was lost while this cell was made ready; nothing was run, run the cell again"
            raise PreconditionFailed("CELL_NOT_STARTED", text)
        if record is None and first.start.follow_only:
            text = "this cell is not known here any more: its host's daemon was started anew, and its worker has ended"
            raise PreconditionFailed("LEASE_UNKNOWN", text, lease_id=first.start.lease_id)
        if record is None:
            record = self._begin(first.start)
        reader = self._start(self._read(requests, execution_id))
        try:
            async with aclosing(record.follow()) as messages:
                async for message in messages:
                    yield message
        finally:
            reader.cancel()
            if not record.done:
                asyncio.get_running_loop().call_later(ABANDONED_S, self._end_if_abandoned, execution_id)

    def _begin(self, start: pb.ExecuteStart) -> ExecutionRecord:
        """Starts the cell; nothing here waits, so that two calls cannot start it twice."""
        host, execution_id = self._host, ExecutionId(start.execution_id)
        lease = host.leases.use(LeaseId(start.lease_id), execution_id, Epoch(start.epoch), time.monotonic())
        record = host.executions.start(execution_id)
        execution = CellExecution(
            start, lease, record, host.pool, host.reporter, host.facts, lambda: host.leases.finish(lease.lease_id),
            host.journal,
        )
        self._follow(execution)
        return record

    def adopt(self, execution: CellExecution) -> None:
        """A cell goes on here that began under an earlier daemon; it is ended if nobody asks for it any more."""
        self._host.executions.keep(execution.record)
        self._follow(execution)
        if self._callers_may_come:
            self._expect_caller(execution)

    def callers_may_come(self) -> None:
        """Notebooks can ask for adopted cells from here on, and are given their time for it."""
        self._callers_may_come = True
        for execution in self._running.values():
            if execution.adopted:
                self._expect_caller(execution)

    def _expect_caller(self, execution: CellExecution) -> None:
        execution_id = execution.lease.execution_id
        asyncio.get_running_loop().call_later(ADOPTED_S, self._end_if_abandoned, execution_id)

    def fence(self, session_id: SessionId, epoch: Epoch) -> None:
        """The session has a new owner: what an adopted cell would save is refused, so its GPU is not held for it."""
        if self._host.returning is not None:
            self._host.returning.fence(session_id, epoch)
        for execution in list(self._running.values()):
            lease = execution.lease
            if execution.adopted and lease.session_id == session_id and lease.epoch < epoch:
                execution.end(Conflict("CALLER_GONE", "the notebook of this cell has given it up"))

    def _follow(self, execution: CellExecution) -> None:
        self._running[execution.lease.execution_id] = execution
        self._start(self._run(execution))

    def _end_if_abandoned(self, execution_id: ExecutionId) -> None:
        execution = self._running.get(execution_id)
        if execution is not None and execution.record.unheard_s() >= ABANDONED_S:
            log.warning("abandoned_cell_ended", execution=execution_id)
            execution.end(Conflict("CALLER_GONE", "the notebook of this cell is gone"))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, execution: CellExecution) -> None:
        lease = execution.lease
        try:
            with log_context(session=lease.session_id, execution=lease.execution_id, epoch=lease.epoch):
                await execution.run()
        finally:
            del self._running[execution.lease.execution_id]
            self._host.changed()

    async def _read(self, requests: AsyncIterator[pb.ExecuteRequest], execution_id: ExecutionId) -> None:
        async for request in requests:
            execution = self._running.get(execution_id)
            if execution is None:
                return
            try:
                if request.HasField("input_reply"):
                    await execution.input_reply(request.input_reply)
                elif request.HasField("interrupt"):
                    execution.interrupt(request.interrupt.kill)
                elif request.HasField("comm"):
                    await execution.comm(request.comm)
                elif request.HasField("release_left"):
                    execution.release_left()
            except LooseLeafError as error:
                log.info("execute_request_dropped", reason=error.reason, execution=execution_id)

    async def FetchRegions(
        self, request: pb.FetchRegionsRequest, context: Any
    ) -> AsyncIterator[pb.FetchRegionsResponse]:
        """See the proto."""
        if len(request.regions) > REGIONS_PER_FETCH_MAX:
            raise InvalidArgument("FETCH_TOO_LONG", f"a fetch names at most {REGIONS_PER_FETCH_MAX} regions")
        async with self._fetches:
            for ref in request.regions:
                data = await self._host.regions.copy_of((ref.region_id, ref.length_bytes))
                if data is not None:
                    yield pb.FetchRegionsResponse(chunk=checkpoint_pb2.RegionChunk(region=ref, data=data))

    async def GetHost(self, request: pb.GetHostRequest, context: Any) -> pb.GetHostResponse:
        """See the proto."""
        return self._host.describe()

    async def end_cells(self) -> None:
        """The host stops: cells that run are ended, saves under way get `SAVE_AT_STOP_S`."""
        for execution in self._running.values():
            execution.end(Unavailable("HOST_STOPPED", "the host that ran this cell was stopped"))
        try:
            await asyncio.wait_for(self.until_idle(), SAVE_AT_STOP_S)
        except TimeoutError:
            log.warning("saves_cut_off", executions=list(self._running))

    @property
    def idle(self) -> bool:
        """No cell runs here."""
        return not self._running

    async def until_idle(self) -> None:
        """Returns when no cell runs here any more."""
        while self._running:
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)


def _held_lease(lease: types_pb2.Lease, now_s: float) -> HeldLease:
    """Raises InvalidArgument `LEASE_MALFORMED`."""
    complete = lease.lease_id and lease.session_id and lease.execution_id and lease.gpu_indices and lease.ttl_ms
    if not complete or lease.path not in types_pb2.StartPath.values():
        raise InvalidArgument(
            "LEASE_MALFORMED", "a lease names a session, an execution, one GPU or more, a time to live and a path"
        )
    return HeldLease(
        LeaseId(lease.lease_id),
        SessionId(lease.session_id),
        Epoch(lease.epoch),
        ExecutionId(lease.execution_id),
        tuple(lease.gpu_indices),
        WorkerId(lease.worker_id) if lease.worker_id else None,
        int(lease.path),
        lease.ttl_ms / 1000,
        now_s,
        now_s + lease.ttl_ms / 1000,
        worker_required=lease.worker_required,
    )
