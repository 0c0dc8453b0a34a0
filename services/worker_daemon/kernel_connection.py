"""One kernel's connection: its session, its state requests, its submitted cells (docs/protocol.md)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from looseleaf.devices.description import GpuDescription
from looseleaf.errors import CapacityExceeded, PreconditionFailed, Unsupported
from looseleaf.ids import Epoch, ExecutionId, SessionId, check_id, new_session_id
from looseleaf.protocol import fields
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import AsyncLink
from looseleaf.protocol.frames import PROTOCOL_VERSION
from looseleaf.protocol.rpc import Reply
from looseleaf.services.worker_daemon.log_ids import with_ids
from looseleaf.services.worker_daemon.relay_clients import RelayClients
from looseleaf.services.worker_daemon.run_relay import RunRelay
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.wire import Body
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()

PoolGpu = Callable[[], Awaitable[GpuDescription | None]]


class KernelConnection:
    """One kernel: its session, its state requests, its submitted cells."""

    def __init__(
        self,
        sock: socket.socket,
        owner: StateOwner,
        requests: StateRequests,
        clients: RelayClients,
        host: Body,
        pool_gpu: PoolGpu | None = None,
        on_owner: Callable[[SessionId, Epoch], None] = lambda _session, _epoch: None,
    ) -> None:
        self._on_owner = on_owner
        self._owner = owner
        self._clients = clients
        self._host = host
        self._pool_gpu = pool_gpu
        self._runs: dict[ExecutionId, RunRelay] = {}
        # A worker may be kept for this kernel alone: for what cannot be saved, or as the person asked.
        self.keeps = False
        handlers: dict[str, Any] = {
            **requests.handlers(),
            "hello": self._hello,
            "record_runs": self._record_runs,
            "prepare": self._prepare,
            "submit": self._submit,
            "resume": self._resume,
            "input_reply": self._input_reply,
            "interrupt": self._interrupt,
            "comm": self._comm,
            "release_left": self._release_left,
            "raise_epoch": self._raise_epoch,
            "evict_workers": self._evict_workers,
            "release_unsaved": self._release_unsaved,
        }
        self._link = AsyncLink(AsyncChannel(sock), handlers=with_ids(owner, handlers))

    @property
    def session_id(self) -> SessionId:
        """Empty before the kernel's hello."""
        return self._owner.session_id

    async def is_owner(self) -> bool:
        """Whether no other kernel took the session over since. Raises what the store's client does."""
        head = await self._clients.store.open_session(self.session_id, create=False, raise_epoch=False)
        return bool(head.epoch == self._owner.epoch)

    async def serve(self) -> None:
        """Until the kernel goes."""
        try:
            why = await self._link.serve()
        except asyncio.CancelledError:
            # This daemon stops, the kernel goes on.
            for relay in self._runs.values():
                if relay.following is not None:
                    relay.following.cancel()
            raise
        await asyncio.gather(*(relay.leave() for relay in self._runs.values()))
        log.info("kernel_left", session=self._owner.session_id, why=why.reason)

    async def _hello(self, body: Body, _fds: list[int]) -> Reply:
        version = fields.integer(body, "v")
        if version != PROTOCOL_VERSION:
            raise Unsupported(
                "PROTOCOL_VERSION",
                f"this daemon speaks version {PROTOCOL_VERSION} of the worker protocol, the "
                f"kernel {version}; install the same LooseLeaf on both",
                supported=PROTOCOL_VERSION,
            )
        asked = fields.text(body, "session_id", "")
        session_id = SessionId(check_id("session", asked)) if asked else new_session_id()
        self._owner.title = fields.text(body, "title", "")
        head = await self._open(session_id, body)
        self._owner.session_id, self._owner.epoch = session_id, Epoch(head.epoch)
        self._on_owner(session_id, self._owner.epoch)
        log.info("kernel_joined", session=session_id, epoch=head.epoch, version=head.version)
        gpu = await self._pool_gpu() if self._pool_gpu is not None else None
        return Reply(
            {
                "v": PROTOCOL_VERSION,
                **({"gpu": gpu.message()} if gpu is not None else {}),
                "session_id": session_id,
                "epoch": head.epoch,
                "version": head.version,
                **self._host,
            }
        )

    async def _open(self, session_id: SessionId, body: Body) -> cp.SessionHead:
        """The session as this kernel's own.

        The epoch rises, but not for a kernel whose daemon was lost while a cell of its `running` ran: it is still the
        owner if the epoch is still its own, and the cell may go on.
        """
        store, title = self._clients.store, self._owner.title
        if fields.text(body, "running", ""):
            head = await store.open_session(session_id, create=True, raise_epoch=False, title=title)
            if head.epoch == fields.integer(body, "epoch"):
                return head
        return await store.open_session(session_id, create=True, raise_epoch=True, title=title)

    def _session(self) -> SessionId:
        if not self._owner.session_id:
            raise PreconditionFailed("NO_SESSION", "the kernel has not said hello yet")
        return self._owner.session_id

    async def _record_runs(self, body: Body, _fds: list[int]) -> Reply:
        return Reply({"next_sequence": await self._clients.record_runs(self._session(), fields.sequence(body, "runs"))})

    async def _prepare(self, body: Body, _fds: list[int]) -> Reply:
        return Reply(await self._clients.prepare(self._session(), body))

    async def _submit(self, body: Body, _fds: list[int]) -> Reply:
        return await self._relay(body, RunRelay.run)

    async def _resume(self, body: Body, _fds: list[int]) -> Reply:
        return await self._relay(body, RunRelay.resume)

    async def _relay(self, body: Body, carry: Callable[[RunRelay], Awaitable[Body]]) -> Reply:
        execution_id = ExecutionId(check_id("execution", fields.text(body, "execution_id")))
        if execution_id in self._runs:
            raise CapacityExceeded("EXECUTION_RUNNING", "this execution is already running for this kernel")
        self._session()
        relay = self._runs[execution_id] = RunRelay(self._owner, body, self._clients, self._send_event)
        try:
            saved = await carry(relay)
        except BaseException:
            del self._runs[execution_id]
            raise
        wished_s = fields.number(fields.mapping(body, "context", {}), "keep_s", 0.0)
        self.keeps = self.keeps or saved["unsaved_kept_s"] > 0 or wished_s > 0
        assert relay.following is not None
        relay.following.add_done_callback(lambda task: self._run_over(execution_id, task))
        return Reply({"saved": saved})

    def _run_over(self, execution_id: ExecutionId, following: asyncio.Task[None]) -> None:
        del self._runs[execution_id]
        if not following.cancelled() and (error := following.exception()) is not None:
            # Only of what the cell left running; its outcome was told.
            log.warning("left_not_followed", execution=execution_id, error=str(error))

    async def _send_event(self, body: Body) -> None:
        await self._link.send_event("event", body)

    def _run_of(self, body: Body) -> RunRelay:
        relay = self._runs.get(ExecutionId(fields.text(body, "execution_id")))
        if relay is None:
            raise PreconditionFailed("EXECUTION_ENDED", "this cell is not running any more")
        return relay

    async def _input_reply(self, body: Body, _fds: list[int]) -> Reply:
        answer = pb.InputReply(
            value=fields.text(body, "value", ""), refused=fields.boolean(body, "refused", False),
            question=fields.integer(body, "question", 0),
        )  # fmt: skip
        await self._run_of(body).input_reply(answer)
        return Reply({})

    async def _comm(self, body: Body, _fds: list[int]) -> Reply:
        told = {"origin": fields.text(body, "origin"), "message": fields.mapping(body, "message")}
        await self._run_of(body).comm(told)
        return Reply({})

    async def _release_left(self, body: Body, _fds: list[int]) -> Reply:
        await self._run_of(body).release_left()
        return Reply({})

    async def _interrupt(self, body: Body, _fds: list[int]) -> Reply:
        await self._run_of(body).interrupt(fields.boolean(body, "kill", False))
        return Reply({})

    async def _raise_epoch(self, _body: Body, _fds: list[int]) -> Reply:
        head = await self._clients.store.open_session(
            self._session(), create=False, raise_epoch=True, title=self._owner.title
        )
        self._owner.epoch = Epoch(head.epoch)
        self._on_owner(self._session(), self._owner.epoch)
        return Reply({"epoch": head.epoch, "version": head.version})

    async def _evict_workers(self, _body: Body, _fds: list[int]) -> Reply:
        evicted, silent = await self._clients.evict_workers(self._session())
        self.keeps = False
        return Reply({"evicted": evicted, "silent_hosts": silent})

    async def _release_unsaved(self, body: Body, _fds: list[int]) -> Reply:
        host_id, worker_id = fields.text(body, "host_id"), fields.text(body, "worker_id")
        names = fields.texts(body, "names")
        await self._clients.release_unsaved(self._session(), host_id, worker_id, names)
        return Reply({})
