"""What the daemon reaches over gRPC: the frontend, the scheduler, other hosts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import structlog

from looseleaf.errors import CapacityExceeded, InvalidArgument, LooseLeafError
from looseleaf.ids import HostId, SessionId, new_request_id
from looseleaf.protocol import fields
from looseleaf.rpc.client import NO_DEADLINE, Channel
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.wire import Body, cell_text, recipe_body
from looseleaf.v1 import frontend_pb2, recipe_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

log = structlog.get_logger()

PEERS_MAX = 256
RECORD_TIMEOUT_S = 5.0
PREPARE_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 5.0
# A worker that does not end by itself is killed; see WorkerProcess.end.
EVICT_TIMEOUT_S = 10.0
# Each lasts some seconds at most.
EVICTIONS_MAX = 256

# Signals of a front end that say that somebody changes a cell's text.
EDITED_KINDS = ("edit", "paste")


class Peers:
    """Channels to other daemons by address, least recently used ones closed beyond `PEERS_MAX`."""

    def __init__(self, open_channel: Callable[[str, str], Channel]) -> None:
        self._open_channel = open_channel
        self._stubs: OrderedDict[str, tuple[Channel, Any]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def stub(self, address: str) -> Any:
        """The daemon at `address`."""
        if address not in self._stubs:
            channel = self._open_channel(address, "host")
            self._stubs[address] = (channel, WorkerDaemonServiceStub(channel))
            if len(self._stubs) > PEERS_MAX:
                _address, (old, _stub) = self._stubs.popitem(last=False)
                task = asyncio.create_task(old.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._stubs.move_to_end(address)
        return self._stubs[address][1]


class Clients:
    """RelayClients over gRPC; see run_relay.py for what each method promises."""

    def __init__(
        self,
        store: StoreClient,
        frontend: Channel,
        peers: Peers,
        host_id: HostId,
        evict_session: Callable[[SessionId], Awaitable[int]],
        addresses: Callable[[Collection[str]], Awaitable[dict[str, str]]],
        own_address: str = "",
    ) -> None:
        self.store = store
        self._frontend: Any = FrontendServiceStub(frontend)
        self._peers = peers
        self._host_id = host_id
        self._evict_session = evict_session
        self._addresses = addresses
        self._own_address = own_address
        self._evictions: set[asyncio.Task[tuple[int, list[str]]]] = set()

    async def record_runs(self, session_id: SessionId, runs: list[Any]) -> int:
        """See RelayClients."""
        request = frontend_pb2.RecordRunsRequest(session_id=session_id, runs=[_cell_run(run) for run in runs])
        response = await self._frontend.RecordRuns(request, timeout_s=RECORD_TIMEOUT_S)
        return int(response.next_sequence)

    async def prepare(self, session_id: SessionId, body: Body) -> Body:
        """See RelayClients."""
        request = frontend_pb2.PrepareCellRequest(
            request_id=new_request_id(),
            cell=cell_text(session_id, body),
            edit_sequence=fields.integer(body, "edit_sequence", 0),
            predicted=fields.boolean(body, "predicted", False),
            edited=fields.text(body, "kind", "") in EDITED_KINDS,
        )
        request.cell.tenant = self.store.tenant
        response = await self._frontend.PrepareCell(request, timeout_s=PREPARE_TIMEOUT_S)
        return {
            "recipe": recipe_body(response.recipe),
            "worker_id": response.worker_id,
            "prepare_ms": response.prepare_ms,
            "skipped_reason": response.skipped_reason,
        }

    async def submit(
        self, request: frontend_pb2.SubmitCellRequest
    ) -> AsyncGenerator[frontend_pb2.SubmitCellResponse, None]:
        """See RelayClients."""
        request.cell.tenant = self.store.tenant
        async with self._frontend.SubmitCell(request, timeout_s=NO_DEADLINE) as news:
            async for item in news:
                yield item

    async def execute(
        self, address: str, requests: AsyncIterator[pb.ExecuteRequest]
    ) -> AsyncGenerator[pb.ExecuteResponse, None]:
        """See RelayClients."""
        async with self._peers.stub(address).Execute(timeout_s=NO_DEADLINE) as call:
            writer = asyncio.create_task(_write_all(call, requests))
            try:
                async for response in call:
                    yield response
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def address(self, host_id: str) -> str:
        """See RelayClients."""
        if host_id == self._host_id and self._own_address:
            return self._own_address
        return (await self._addresses([host_id])).get(host_id, "")

    async def evict_workers(self, session_id: SessionId) -> tuple[int, list[str]]:
        """See RelayClients. Goes on if the caller is cancelled, as that of a kernel that asks at its end.

        Raises CapacityExceeded `TOO_MANY_REQUESTS` beyond `EVICTIONS_MAX` at once.
        """
        if len(self._evictions) >= EVICTIONS_MAX:
            text = f"more than {EVICTIONS_MAX} sessions end their workers at once; ask again later"
            raise CapacityExceeded("TOO_MANY_REQUESTS", text)
        task = asyncio.create_task(self._evict_everywhere(session_id))
        self._evictions.add(task)
        task.add_done_callback(self._evicted)
        return await asyncio.shield(task)

    def _evicted(self, task: asyncio.Task[tuple[int, list[str]]]) -> None:
        self._evictions.discard(task)
        # Whoever has asked may be gone.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("workers_not_evicted", error=type(error).__name__)

    async def _evict_everywhere(self, session_id: SessionId) -> tuple[int, list[str]]:
        # Those here do not wait for the scheduler, which knows the other hosts and may hang.
        here, there = await asyncio.gather(
            self._evict_session(session_id), self._evict_elsewhere(session_id), return_exceptions=True
        )
        if isinstance(here, BaseException):
            raise here
        if isinstance(there, BaseException):
            raise there
        silent = [host for host, evicted in there.items() if evicted is None]
        return here + sum(evicted or 0 for evicted in there.values()), silent

    async def _evict_elsewhere(self, session_id: SessionId) -> dict[str, int | None]:
        """See `_evict_at`, by host."""
        others = {host: where for host, where in (await self._addresses([])).items() if host != self._host_id}
        evicted = await asyncio.gather(*(self._evict_at(where, session_id) for where in others.values()))
        return dict(zip(others, evicted, strict=True))

    async def _evict_at(self, address: str, session_id: SessionId) -> int | None:
        """How many workers of the session the daemon there has ended; None if it did not answer."""
        request = pb.EvictSessionRequest(request_id=new_request_id(), session_id=session_id)
        try:
            response = await self._peers.stub(address).EvictSession(request, timeout_s=EVICT_TIMEOUT_S)
        except LooseLeafError as error:
            log.info("session_not_evicted", address=address, reason=error.reason)
            return None
        return int(response.evicted)

    async def release_unsaved(self, session_id: SessionId, host_id: str, worker_id: str, names: list[str]) -> None:
        """See RelayClients."""
        address = (await self._addresses([host_id])).get(host_id)
        if address is None:
            # Gone, and its workers with it.
            return
        request = pb.ReleaseUnsavedRequest(
            request_id=new_request_id(), session_id=session_id, worker_id=worker_id, names=names
        )
        await self._peers.stub(address).ReleaseUnsaved(request, timeout_s=RELEASE_TIMEOUT_S)


async def _write_all(call: Any, requests: AsyncIterator[pb.ExecuteRequest]) -> None:
    async for request in requests:
        if not await call.write(request):
            return


def _cell_run(run: Any) -> recipe_pb2.CellRun:
    if not isinstance(run, dict):
        raise InvalidArgument("FIELD_MALFORMED", "each run is a map")
    seen = fields.mapping(run, "observed", {})
    observed = recipe_pb2.Observation(
        guess=fields.text(seen, "guess", ""),
        touched_gpu=fields.boolean(seen, "touched_gpu", False),
        peak_bytes=fields.integer(seen, "peak_bytes", 0),
        duration_s=fields.number(seen, "duration_s", 0.0),
    )
    return recipe_pb2.CellRun(
        sequence=fields.integer(run, "sequence", minimum=1),
        cell_id=fields.text(run, "cell_id", ""),
        source=fields.text(run, "source"),
        ok=fields.boolean(run, "ok"),
        observed=observed if seen else None,
    )
