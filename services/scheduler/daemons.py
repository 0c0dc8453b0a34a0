"""Orders to worker daemons: one channel per daemon, each order answered by exactly one event."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from looseleaf.errors import Internal, LooseLeafError
from looseleaf.ids import WorkerId, new_request_id
from looseleaf.logs import get_logger
from looseleaf.rpc.client import Channel
from looseleaf.services.scheduler.conversion import lease_message
from looseleaf.services.scheduler.core.actions import EvictWorker, GrantLease, PrepareWorker, RevokeLease
from looseleaf.services.scheduler.core.events import (
    Event,
    EvictionEnded,
    GrantFailed,
    LeaseGranted,
    LeaseRevoked,
    PreparationFailed,
    RevokeUnanswered,
    WorkerPrepared,
)
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.v1 import recipe_pb2, scheduler_pb2, worker_daemon_pb2
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

PEER: Final = "daemon"
CHANNELS_MAX: Final = 10_000
# A process with a device context may take its time to end.
EVICT_TIMEOUT_S: Final = 10.0
# Errors that the channel made itself: nobody knows whether the daemon carried the order out.
_UNANSWERED: Final = ("DAEMON_DOWN", "DAEMON_TIMEOUT", "RPC_LIMIT")

log = get_logger()


def _reached(stage: int) -> WorkerStage:
    """How far a worker is; a daemon that does not say so goes no further than host_ready."""
    further = (WorkerStage.CONTEXT_READY, WorkerStage.DEVICE_READY)
    return WorkerStage(stage) if stage in further else WorkerStage.HOST_READY


class DaemonOrders:
    """Sends orders; every method returns the event that follows and raises nothing but cancellation.

    Each order has a fresh idempotency key: daemons remember keys longer than a scheduler lives, and some orders are
    given again. Only the channel's own retries repeat one.
    """

    def __init__(
        self, open_channel: Callable[[str, str], Channel], order_timeout_s: float, prepare_timeout_s: float,
    ) -> None:
        self._open_channel = open_channel
        self._order_timeout_s = order_timeout_s
        self._prepare_timeout_s = prepare_timeout_s
        self._channels: OrderedDict[str, Channel] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def grant(self, action: GrantLease) -> Event:
        """LeaseGranted or GrantFailed."""
        lease = action.lease
        request = worker_daemon_pb2.GrantLeaseRequest(request_id=new_request_id(), lease=lease_message(lease))
        try:
            await self._stub(lease.address).GrantLease(request, timeout_s=self._order_timeout_s)
        except LooseLeafError as error:
            answered = error.reason not in _UNANSWERED and not isinstance(error, Internal)
            log.warning(
                "lease_grant_failed", lease=lease.lease_id, host=lease.host_id, execution=lease.execution_id,
                session=lease.session_id, reason=error.reason, answered=answered)
            return GrantFailed(lease.lease_id, answered, error.reason, error.message)
        return LeaseGranted(lease.lease_id)

    async def revoke(self, action: RevokeLease) -> Event:
        """LeaseRevoked or RevokeUnanswered."""
        request = worker_daemon_pb2.RevokeLeaseRequest(request_id=new_request_id(), lease_id=action.lease_id)
        try:
            answer = await self._stub(action.address).RevokeLease(request, timeout_s=self._order_timeout_s)
        except LooseLeafError as error:
            log.warning("lease_revoke_failed", lease=action.lease_id, host=action.host_id, reason=error.reason)
            return RevokeUnanswered(action.lease_id)
        return LeaseRevoked(action.lease_id, answer.in_use)

    async def evict(self, action: EvictWorker) -> Event:
        """EvictionEnded."""
        request = worker_daemon_pb2.EvictWorkerRequest(
            request_id=new_request_id(), worker_id=action.worker_id, epoch=action.epoch)
        try:
            answer = await self._stub(action.address).EvictWorker(request, timeout_s=EVICT_TIMEOUT_S)
            evicted = bool(answer.evicted)
        except LooseLeafError as error:
            log.warning("worker_evict_failed", worker=action.worker_id, host=action.host_id, reason=error.reason)
            evicted = False
        return EvictionEnded(action.host_id, action.worker_id, action.lease_id, evicted)

    async def prepare(self, action: PrepareWorker, recipe: recipe_pb2.ExecutionRecipe | None) -> Event:
        """WorkerPrepared or PreparationFailed; `recipe` None: the one that the worker was prepared for."""
        request = worker_daemon_pb2.PrepareWorkerRequest(
            request_id=new_request_id(), session_id=action.session_id, epoch=action.epoch, recipe=recipe,
            worker_id=action.worker_id, stage=scheduler_pb2.WorkerStage.Name(action.stage),
            gpu_indices=action.gpu_indices, leave_device=action.leave_device)
        began_s = asyncio.get_running_loop().time()
        try:
            answer = await self._stub(action.address).PrepareWorker(request, timeout_s=self._prepare_timeout_s)
        except LooseLeafError as error:
            log.warning(
                "worker_prepare_failed", session=action.session_id, host=action.host_id, reason=error.reason)
            return PreparationFailed(action.request_id, error.reason, error.message)
        measured_ms = (asyncio.get_running_loop().time() - began_s) * 1000
        return WorkerPrepared(
            action.request_id, WorkerId(answer.worker_id), answer.stage_ms.get("total", measured_ms), answer.pid,
            answer.mapped_bytes, _reached(answer.stage), tuple(answer.gpu_indices))

    def drop(self, address: str) -> None:
        """The daemon is gone: its channel is closed, and what runs on it ends unanswered."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._close(channel)

    async def aclose(self) -> None:
        """Closes every channel."""
        for address in list(self._channels):
            self.drop(address)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _stub(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address, PEER)
            while len(self._channels) > CHANNELS_MAX:
                self._close(self._channels.popitem(last=False)[1])
        self._channels.move_to_end(address)
        return WorkerDaemonServiceStub(channel)

    def _close(self, channel: Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
