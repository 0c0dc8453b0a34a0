"""A submitted cell between its kernel and the host that runs it: recipe, queue, lease, outputs (design §2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Protocol

import msgpack
import structlog

from looseleaf.errors import CapacityExceeded, Conflict, InvalidArgument, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch, SessionId
from looseleaf.protocol import fields
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.execution_log import LIFE_MESSAGES, dropped, is_last
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.wire import left_body, recipe_body, saved_body
from looseleaf.v1 import frontend_pb2, recipe_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()

Body = dict[str, Any]

REQUESTS_WAITING_MAX = 64
# A host's daemon that was started anew serves after its first imports.
REJOIN_S = 60.0
REJOIN_DELAY_S = 0.5
# A stop that went out longer ago has got through, and what it stopped may be over.
INTERRUPT_AGAIN_S = 10.0
# How long a kernel's end waits until the cell's host has heard of it.
LEAVE_S = 2.0
# What a host says that was started anew while it ran the cell.
FORGOTTEN_REASONS = frozenset({"LEASE_UNKNOWN", "LEASE_USED"})


class RelayClients(Protocol):
    """What a kernel's connection reaches beyond this host."""

    store: StoreClient

    async def record_runs(self, session_id: SessionId, runs: list[Any]) -> int:
        """Hands the kernel's log on; returns the sequence that the frontend expects next."""
        ...

    async def prepare(self, session_id: SessionId, body: Body) -> Body:
        """Has a cell prepared; the body of the reply."""
        ...

    def submit(
        self, request: frontend_pb2.SubmitCellRequest
    ) -> AsyncGenerator[frontend_pb2.SubmitCellResponse, None]:
        """Queue news and at last the lease."""
        ...

    def execute(
        self, address: str, requests: AsyncIterator[pb.ExecuteRequest]
    ) -> AsyncGenerator[pb.ExecuteResponse, None]:
        """The running cell on the host at `address`."""
        ...

    async def address(self, host_id: str) -> str:
        """Where the host's daemon listens; empty if it is not there."""
        ...

    async def evict_workers(self, session_id: SessionId) -> tuple[int, list[str]]:
        """Ends the session's idle workers on all hosts: how many, and the hosts that did not answer."""
        ...

    async def release_unsaved(self, session_id: SessionId, host_id: str, worker_id: str, names: list[str]) -> None:
        """The session needs these unsaved variables of a worker on any host no more."""
        ...


class RunRelay:
    """Carries one submitted cell. `send_event` gets every event for the kernel, in order."""

    def __init__(
        self, owner: StateOwner, body: Body, clients: RelayClients, send_event: Callable[[Body], Awaitable[None]]
    ) -> None:
        self._owner = owner
        self._body = body
        self._clients = clients
        self._send_event = send_event
        self._execution_id = fields.text(body, "execution_id")
        self._began_s = time.monotonic()
        self._waiting: asyncio.Task[types_pb2.Lease] | None = None
        self._requests: asyncio.Queue[pb.ExecuteRequest] = asyncio.Queue(REQUESTS_WAITING_MAX)
        # Position of the last message that was handed to the kernel, and the worker's number of its last own.
        self._heard = self._heard_event = 0
        # Of the running host's daemon, as its positions tell.
        self._life = 0
        # The cell was begun before this daemon's life: it is never started from here.
        self._follow_only = False
        # What a host that is lost may not have passed on: the last answer, an interrupt that nothing has followed.
        self._last_answer: pb.ExecuteRequest | None = None
        self._last_interrupt: pb.ExecuteRequest | None = None
        self._interrupted_s = 0.0
        self._recipe = recipe_pb2.ExecutionRecipe()
        self._saved: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        # Follows the cell, after its save what it left running too.
        self.following: asyncio.Task[None] | None = None

    async def run(self) -> Body:
        """Returns the save's outcome as the protocol's `saved` map; `following` then goes on if something was left.

        Raises Conflict `INTERRUPTED` if the person interrupted before the cell had a GPU; CapacityExceeded
        `NO_GPU_FREE` if it was to wait for none; the errors of the frontend
        and the scheduler as they are; Unavailable `HOST_LOST` if the running host cannot be reached any more.
        """
        self._waiting = asyncio.create_task(self._wait_for_lease())
        try:
            lease = await self._waiting
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                self._waiting.cancel()
                raise
            raise Conflict(
                "INTERRUPTED", "the cell was interrupted while it waited for a GPU; nothing was run"
            ) from None
        finally:
            self._waiting = None
        await self._event(
            "lease",
            {
                "host_id": lease.host.host_id,
                "gpu": lease.gpu_indices[0],
                "path": lease.path,
                "worker_id": lease.worker_id,
                "lease_id": lease.lease_id,
            },
        )
        return await self._followed(lease)

    async def resume(self) -> Body:
        """As `run`, of a cell that a host has been running since before this daemon's life.

        The kernel has heard of it up to the worker's event `heard`. Raises Unavailable `HOST_LOST` if the host cannot
        be reached or does not know the cell any more.
        """
        self._follow_only = True
        self._heard_event = fields.integer(self._body, "heard")
        host_id, lease_id = fields.text(self._body, "host_id"), fields.text(self._body, "lease_id")
        lease = types_pb2.Lease(lease_id=lease_id, epoch=self._owner.epoch)
        lease.host.host_id = host_id
        limit_s = time.monotonic() + REJOIN_S
        while not (address := await self._clients.address(host_id)):
            if time.monotonic() >= limit_s:
                raise _host_lost(lease)
            await asyncio.sleep(REJOIN_DELAY_S)
        lease.host.address = address
        return await self._followed(lease)

    async def _followed(self, lease: types_pb2.Lease) -> Body:
        self.following = asyncio.create_task(self._execute(lease))
        try:
            ends: set[asyncio.Future[Any]] = {self._saved, self.following}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.following.cancel()
            raise
        if not (self._saved.done() and self._saved.result()["left_running"]):
            # Ends at once now, or has failed.
            await self.following
        return self._saved.result()

    async def _wait_for_lease(self) -> types_pb2.Lease:
        request = frontend_pb2.SubmitCellRequest(
            execution_id=self._execution_id,
            cell=cell_text(self._owner.session_id, self._body),
            epoch=fields.integer(self._body, "epoch"),
            version=fields.integer(self._body, "version"),
            priority=fields.text(self._body, "priority", "interactive"),
            needed_worker_id=fields.text(self._body, "needed_worker", ""),
            needed_names=fields.texts(self._body, "needed_names", []),
        )
        lease: types_pb2.Lease | None = None
        async with aclosing(self._clients.submit(request)) as stream:
            # To the stream's end: a caller that leaves before it looks as if it did not want the lease any more.
            async for news in stream:
                which = news.WhichOneof("news")
                if which == "recipe":
                    self._recipe = news.recipe
                    await self._event("recipe", {"recipe": recipe_body(news.recipe)})
                elif which == "queue":
                    if not fields.boolean(self._body, "waits", True):
                        text = "no GPU is free at once, and the cell was not to wait for one; nothing was run"
                        raise CapacityExceeded("NO_GPU_FREE", text)
                    await self._event("queue", {"position": news.queue.position, "reason": news.queue.reason})
                elif which == "lease":
                    lease = news.lease
        if lease is not None:
            return lease
        raise Unavailable(
            "NO_LEASE", "the frontend ended the wait for a GPU without an answer; nothing was run, run the cell again"
        )

    async def _execute(self, lease: types_pb2.Lease) -> None:
        """Follows the cell to its end, over as many connections as it takes."""
        give_up_s: float | None = None
        while True:
            heard = self._heard
            try:
                return await self._follow(lease)
            except PreconditionFailed as error:
                if error.reason not in FORGOTTEN_REASONS or (give_up_s is None and not self._follow_only):
                    raise
                raise _host_lost(lease) from error
            except Unavailable as error:
                now_s = time.monotonic()
                if give_up_s is None or self._heard > heard:
                    give_up_s = now_s + REJOIN_S
                if now_s >= give_up_s:
                    raise _host_lost(lease) from error
                log.info("host_lost_for_now", host=lease.host.host_id, reason=error.reason)
            await asyncio.sleep(REJOIN_DELAY_S)
            # A daemon that was started anew may listen elsewhere.
            lease.host.address = await self._clients.address(lease.host.host_id) or lease.host.address

    async def _follow(self, lease: types_pb2.Lease) -> None:
        async with aclosing(self._clients.execute(lease.host.address, self._outgoing(lease))) as responses:
            async for response in responses:
                if response.position <= self._heard:
                    continue
                self._heard = response.position
                if 0 < response.worker_event <= self._heard_event:
                    continue
                await self._tell_gap(response)
                if response.HasField("saved"):
                    self._saved.set_result(saved_body(response.saved))
                else:
                    await self._deliver(response)
                if is_last(response):
                    return
        raise Unavailable("HOST_LOST", "the host that runs this cell ended the connection")

    async def _tell_gap(self, response: pb.ExecuteResponse) -> None:
        """A daemon that was started anew has what the worker still had: what came before that is lost, and told."""
        life, number = response.position // LIFE_MESSAGES, response.worker_event
        if number:
            lost = number - self._heard_event - 1 if life != self._life else 0
            self._heard_event, self._life = number, life
            self._last_interrupt = None
            if lost > 0:
                await self._deliver(dropped(lost, response.position))

    async def _outgoing(self, lease: types_pb2.Lease) -> AsyncIterator[pb.ExecuteRequest]:
        context = self._body.get("context") or {}
        yield pb.ExecuteRequest(
            start=pb.ExecuteStart(
                execution_id=self._execution_id,
                lease_id=lease.lease_id,
                session_id=self._owner.session_id,
                epoch=Epoch(lease.epoch),
                version=fields.integer(self._body, "version", 0),
                recipe=self._recipe,
                source=fields.text(self._body, "source", ""),
                execution_count=fields.integer(self._body, "execution_count", 0),
                allow_stdin=fields.boolean(self._body, "allow_stdin", False),
                cell_id=fields.text(self._body, "cell_id", ""),
                elapsed_ms=(time.monotonic() - self._began_s) * 1000 + fields.number(self._body, "elapsed_ms", 0.0),
                context=msgpack.packb(context),
                needed_names=fields.texts(self._body, "needed_names", []),
                follow_only=self._follow_only,
            )
        )
        # Of the last connection nobody knows whether these got through; the worker knows an answer by its question.
        for told in (self._last_answer, self._interrupt_in_doubt()):
            if told is not None:
                yield told
        while True:
            request = await self._requests.get()
            if request.HasField("input_reply"):
                self._last_answer = request
            elif request.HasField("interrupt"):
                self._last_interrupt, self._interrupted_s = request, time.monotonic()
            yield request

    def _interrupt_in_doubt(self) -> pb.ExecuteRequest | None:
        return self._last_interrupt if time.monotonic() - self._interrupted_s < INTERRUPT_AGAIN_S else None

    async def _deliver(self, response: pb.ExecuteResponse) -> None:
        which = response.WhichOneof("message")
        number = {"n": response.worker_event} if response.worker_event else {}
        if which == "output":
            await self._event("output", {"message": msgpack.unpackb(response.output), **number})
        elif which == "stage":
            stage = response.stage
            await self._event(
                "stage",
                {
                    "stage": stage.stage, "worker_id": stage.worker_id, "pid": stage.pid,
                    "elapsed_ms": stage.elapsed_ms, **number,
                },
            )  # fmt: skip
        elif which == "input_request":
            asked = response.input_request
            body = {"prompt": asked.prompt, "password": asked.password, "question": asked.question, **number}
            await self._event("input_request", body)
        elif which == "comm_done":
            done = response.comm_done
            await self._event("comm_done", {"origin": done.origin, "late": done.late, **number})
        elif which == "left":
            await self._event("left", left_body(response.left))
        elif which == "ended":
            ended = {"reply": msgpack.unpackb(response.ended.reply), "run_s": response.ended.run_s}
            await self._event("ended", {**ended, **number})

    async def _event(self, kind: str, body: Body) -> None:
        await self._send_event({"execution_id": self._execution_id, "kind": kind, **body})

    async def input_reply(self, answer: pb.InputReply) -> None:
        """The person's answer to the cell's input request."""
        await self._requests.put(pb.ExecuteRequest(input_reply=answer))

    async def comm(self, body: Body) -> None:
        """A front end's comm message for the cell; it waits while earlier ones were not delivered."""
        await self._requests.put(pb.ExecuteRequest(comm=msgpack.packb(body)))

    async def release_left(self) -> None:
        """Nobody waits for what the cell left running any more."""
        await self._requests.put(pb.ExecuteRequest(release_left=pb.ReleaseLeft()))

    async def leave(self) -> None:
        """The kernel has gone: nobody hears of the cell any more, nor waits for what it left running.

        That makes way at once; until its time is over it would keep a GPU from others for nobody's sake. A cell that
        still runs goes on.
        """
        self._send_event = _unheard
        following = self.following
        if following is None:
            return
        if self._saved.done() and not following.done():
            with suppress(asyncio.QueueFull):
                self._requests.put_nowait(pb.ExecuteRequest(release_left=pb.ReleaseLeft()))
            await asyncio.wait({following}, timeout=LEAVE_S)
        following.cancel()

    async def interrupt(self, kill: bool) -> None:
        """Ends the wait for a GPU, or interrupts the running cell."""
        if self._waiting is not None and self._waiting.cancel():
            return
        try:
            self._requests.put_nowait(pb.ExecuteRequest(interrupt=pb.InterruptCell(kill=kill)))
        except asyncio.QueueFull:
            raise CapacityExceeded(
                "INTERRUPT_PENDING", "earlier interrupts of this cell were not delivered yet; wait for them"
            ) from None


async def _unheard(_event: Body) -> None:
    """Where the events of a kernel go that is not there any more."""


def _host_lost(lease: types_pb2.Lease) -> Unavailable:
    return Unavailable(
        "HOST_LOST",
        f"the host {lease.host.host_id} that ran this cell cannot be reached any more; whether it finished is not "
        "known here, the variables are those of the last saved version",
        host=lease.host.host_id,
    )


def cell_text(session_id: SessionId, body: Body) -> frontend_pb2.CellText:
    """The message's cell. Raises InvalidArgument `FIELD_MALFORMED`."""
    local_modules = fields.mapping(body, "local_modules", {})
    if not all(isinstance(path, str) for path in local_modules.values()):
        raise InvalidArgument("FIELD_MALFORMED", "a cell's local_modules must hold texts")
    return frontend_pb2.CellText(
        session_id=session_id,
        cell_id=fields.text(body, "cell_id", ""),
        source=fields.text(body, "source"),
        log_length=fields.integer(body, "log_length", 0),
        device_override=fields.text(body, "device_override", ""),
        environment_id=fields.text(body, "environment_id", ""),
        local_modules=local_modules,
    )
