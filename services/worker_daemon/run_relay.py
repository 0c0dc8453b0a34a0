"""A submitted cell between its kernel and the host that runs it: recipe, queue, lease, outputs (design §2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import msgpack
import structlog

from looseleaf.errors import CapacityExceeded, Conflict, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.caller_requests import CallerRequests
from looseleaf.services.worker_daemon.cell_events import event_of
from looseleaf.services.worker_daemon.execution_log import LIFE_MESSAGES, dropped, is_last
from looseleaf.services.worker_daemon.relay_clients import RelayClients
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.wire import Body, cell_text, recipe_body, saved_body
from looseleaf.v1 import frontend_pb2, recipe_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

log = structlog.get_logger()


# A host's daemon that was started anew serves after its first imports.
REJOIN_S = 60.0
REJOIN_DELAY_S = 0.5
# How long a kernel's end waits until the cell's host has heard of it.
LEAVE_S = 2.0
# What a host says that was started anew while it ran the cell.
FORGOTTEN_REASONS = frozenset({"LEASE_UNKNOWN", "LEASE_USED"})


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
        self._requests = CallerRequests()
        # Position of the last message that was handed to the kernel, and the worker's number of its last own.
        self._heard = self._heard_event = 0
        # Of the running host's daemon, as its positions tell.
        self._life = 0
        # The cell was begun before this daemon's life: it is never started from here.
        self._follow_only = False
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
        requests = self._requests.stream(self._start(lease))
        async with aclosing(self._clients.execute(lease.host.address, requests)) as responses:
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
            self._requests.worker_told()
            if lost > 0:
                await self._deliver(dropped(lost, response.position))

    def _start(self, lease: types_pb2.Lease) -> pb.ExecuteStart:
        body = self._body
        return pb.ExecuteStart(
            execution_id=self._execution_id,
            lease_id=lease.lease_id,
            session_id=self._owner.session_id,
            epoch=Epoch(lease.epoch),
            version=fields.integer(body, "version", 0),
            recipe=self._recipe,
            source=fields.text(body, "source", ""),
            execution_count=fields.integer(body, "execution_count", 0),
            allow_stdin=fields.boolean(body, "allow_stdin", False),
            cell_id=fields.text(body, "cell_id", ""),
            elapsed_ms=(time.monotonic() - self._began_s) * 1000 + fields.number(body, "elapsed_ms", 0.0),
            context=msgpack.packb(body.get("context") or {}),
            needed_names=fields.texts(body, "needed_names", []),
            follow_only=self._follow_only,
        )

    async def _deliver(self, response: pb.ExecuteResponse) -> None:
        if (event := event_of(response)) is not None:
            await self._event(*event)

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
                self._requests.put_now(pb.ExecuteRequest(release_left=pb.ReleaseLeft()))
            await asyncio.wait({following}, timeout=LEAVE_S)
        following.cancel()

    async def interrupt(self, kill: bool) -> None:
        """Ends the wait for a GPU, or interrupts the running cell."""
        if self._waiting is not None and self._waiting.cancel():
            return
        try:
            self._requests.put_now(pb.ExecuteRequest(interrupt=pb.InterruptCell(kill=kill)))
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
