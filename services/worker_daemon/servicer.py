"""WorkerDaemonService: what the scheduler and other daemons ask of this host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog

from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, WorkerId
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.execution import CellExecution
from looseleaf.services.worker_daemon.host import Host
from looseleaf.v1 import checkpoint_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceServicer

log = structlog.get_logger()

REGIONS_PER_FETCH_MAX = 100_000


class WorkerDaemonServicer(WorkerDaemonServiceServicer):
    """Thin: checks requests, hands them to the host's parts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._memory = RequestMemory()
        self._running: dict[ExecutionId, CellExecution] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def GrantLease(self, request: pb.GrantLeaseRequest, context: Any) -> pb.GrantLeaseResponse:
        """See the proto. The lease's clock starts here."""
        lease = request.lease
        now_s = time.monotonic()
        if not lease.gpu_indices or lease.ttl_ms == 0:
            raise InvalidArgument("LEASE_MALFORMED", "a lease names at least one GPU and a time to live")
        self._host.leases.grant(
            HeldLease(
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
            )
        )
        return pb.GrantLeaseResponse()

    async def RevokeLease(self, request: pb.RevokeLeaseRequest, context: Any) -> pb.RevokeLeaseResponse:
        """See the proto."""
        return pb.RevokeLeaseResponse(in_use=self._host.leases.revoke(LeaseId(request.lease_id)))

    async def PrepareWorker(self, request: pb.PrepareWorkerRequest, context: Any) -> pb.PrepareWorkerResponse:
        """See the proto; the same request id again gets the first answer."""

        async def work() -> pb.PrepareWorkerResponse:
            prepared = await self._host.pool.prepare_ahead(
                WorkerId(request.worker_id) if request.worker_id else None,
                SessionId(request.session_id),
                Epoch(request.epoch),
                request.recipe,
            )
            facts = prepared.worker.facts
            return pb.PrepareWorkerResponse(
                worker_id=facts.worker_id, pid=facts.pid, stage_ms=prepared.stage_ms, mapped_bytes=prepared.mapped_bytes
            )

        response: pb.PrepareWorkerResponse = await self._memory.once(request, work)
        return response

    async def EvictWorker(self, request: pb.EvictWorkerRequest, context: Any) -> pb.EvictWorkerResponse:
        """See the proto."""
        return pb.EvictWorkerResponse(evicted=await self._host.pool.evict(WorkerId(request.worker_id)))

    async def Execute(
        self, requests: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteResponse]:
        """See the proto. A caller that leaves does not end the cell; one that comes back hears everything again."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            raise InvalidArgument("EXECUTE_MALFORMED", "the first message of Execute is `start`")
        execution_id = ExecutionId(first.start.execution_id)
        record = self._host.executions.get(execution_id)
        if record is None:
            lease = self._host.leases.use(LeaseId(first.start.lease_id), execution_id, Epoch(first.start.epoch))
            record = self._host.executions.start(execution_id)
            execution = CellExecution(
                first.start,
                lease,
                record,
                self._host.pool,
                self._host.reporter,
                self._host.facts,
                lambda: self._host.leases.finish(lease.lease_id),
            )
            self._running[execution_id] = execution
            self._start(self._run(execution))
        reader = self._start(self._read(requests, execution_id))
        try:
            async for message in record.follow():
                yield message
        finally:
            reader.cancel()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, execution: CellExecution) -> None:
        try:
            await execution.run()
        finally:
            self._host.leases.finish(execution.lease.lease_id)
            del self._running[execution.lease.execution_id]
            self._host.changed()

    async def _read(self, requests: AsyncIterator[pb.ExecuteRequest], execution_id: ExecutionId) -> None:
        async for request in requests:
            execution = self._running.get(execution_id)
            if execution is None:
                return
            try:
                if request.HasField("input_reply"):
                    await execution.input_reply(request.input_reply.value, request.input_reply.refused)
                elif request.HasField("interrupt"):
                    execution.interrupt(request.interrupt.kill)
            except LooseLeafError as error:
                log.info("execute_request_dropped", reason=error.reason, execution=execution_id)

    async def FetchRegions(
        self, request: pb.FetchRegionsRequest, context: Any
    ) -> AsyncIterator[pb.FetchRegionsResponse]:
        """See the proto."""
        if len(request.regions) > REGIONS_PER_FETCH_MAX:
            raise InvalidArgument("FETCH_TOO_LONG", f"a fetch names at most {REGIONS_PER_FETCH_MAX} regions")
        for ref in request.regions:
            data = self._host.regions.read((ref.region_id, ref.length_bytes))
            if data is not None:
                yield pb.FetchRegionsResponse(chunk=checkpoint_pb2.RegionChunk(region=ref, data=data))

    async def GetHost(self, request: pb.GetHostRequest, context: Any) -> pb.GetHostResponse:
        """See the proto."""
        return self._host.describe()

    async def idle(self) -> None:
        """Returns when no cell runs here any more."""
        while self._running:
            await asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)
