"""Tells the scheduler what this host has and does, and renews its leases (design §6)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

import structlog

from looseleaf.devices.description import GpuDescription
from looseleaf.errors import LooseLeafError
from looseleaf.ids import LeaseId
from looseleaf.services.worker_daemon.core.lease_table import LeaseTable
from looseleaf.services.worker_daemon.gpus import gpu_of
from looseleaf.v1 import scheduler_pb2 as pb

log = structlog.get_logger()

CALL_TIMEOUT_S = 5.0
HOSTS_CACHE_S = 5.0
POOL_GPU_TIMEOUT_S = 1.0


class Heartbeat:
    """Sends `snapshot()` every `interval_s`, and at once after `nudge`.

    One at a time: the next is sent when the last was answered. Leases live on this daemon's monotonic clock: each
    answered heartbeat renews what the scheduler knows; an unused lease that is not renewed ends by itself.
    """

    def __init__(
        self, scheduler: Any, snapshot: Callable[[], pb.HeartbeatRequest], leases: LeaseTable, interval_s: float
    ) -> None:
        self._scheduler = scheduler
        self._snapshot = snapshot
        self._leases = leases
        self._interval_s = interval_s
        self._nudged = asyncio.Event()
        self._sending = asyncio.Lock()
        self._failing = self._retiring = False
        self._hosts: dict[str, str] = {}
        # Called once the scheduler wants this host to end: what is only staged here must become durable.
        self.on_retiring: Callable[[], None] = lambda: None
        self._gpu: GpuDescription | None = None
        self._hosts_read_s = float("-inf")

    def nudge(self) -> None:
        """Something changed that the scheduler should know now."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.send()
            for gone in self._leases.expire(time.monotonic()):
                log.info("lease_expired", lease=gone.lease_id, session=gone.session_id)
            await self._until_due()

    async def until_heard(self) -> None:
        """Returns when the scheduler knows this host."""
        while not await self.send():
            await self._until_due()

    async def _until_due(self) -> None:
        # Not wait_for, which drops a cancellation that comes with the nudge.
        try:
            async with asyncio.timeout(self._interval_s):
                await self._nudged.wait()
        except TimeoutError:
            return
        self._nudged.clear()

    async def send(self) -> bool:
        """One heartbeat; False if the scheduler did not hear it.

        Raises PreconditionFailed `STALE_INCARNATION` if another daemon took over this host's id.
        """
        async with self._sending:
            # A renewed term counts from the sending: the earliest moment at which the scheduler may have counted.
            sent_s = time.monotonic()
            try:
                response = await self._scheduler.Heartbeat(self._snapshot(), timeout_s=CALL_TIMEOUT_S)
            except LooseLeafError as error:
                if error.reason == "STALE_INCARNATION":
                    raise
                if not self._failing:
                    log.warning("heartbeat_failed", reason=error.reason)
                self._failing = True
                return False
        self._heard(response, sent_s)
        return True

    def _heard(self, response: pb.HeartbeatResponse, sent_s: float) -> None:
        if self._failing:
            log.info("heartbeat_heard_again")
        self._failing = False
        for lease_id in response.renewed_lease_ids:
            self._leases.renew(LeaseId(lease_id), sent_s)
        for lease_id in response.unknown_lease_ids:
            self._leases.revoke(LeaseId(lease_id))
        if response.retiring and not self._retiring:
            log.info("host_retiring")
            self.on_retiring()
        self._retiring = response.retiring

    async def addresses(self, wanted: Collection[str] = ()) -> dict[str, str]:
        """Addresses of live hosts by id, at most `HOSTS_CACHE_S` old; older ones while the scheduler is away.

        Asked anew at once if one of the `wanted` hosts is not among them: it may just have joined.
        """
        old = time.monotonic() - self._hosts_read_s > HOSTS_CACHE_S
        if old or not self._hosts.keys() >= set(wanted):
            try:
                pool = await self._scheduler.GetPool(pb.GetPoolRequest(), timeout_s=CALL_TIMEOUT_S)
            except LooseLeafError as error:
                log.warning("pool_unknown", reason=error.reason)
            else:
                self._gpu = gpu_of(pool)
                self._hosts = {host.host.host_id: host.host.address for host in pool.hosts if host.liveness != "dead"}
                self._hosts_read_s = time.monotonic()
        return self._hosts

    async def pool_gpu(self) -> GpuDescription | None:
        """What the pool's GPUs are, as far as a live host told; at most `HOSTS_CACHE_S` old.

        Older, or not known, if the scheduler does not say within `POOL_GPU_TIMEOUT_S`: a kernel waits for it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POOL_GPU_TIMEOUT_S):
                await self.addresses()
        return self._gpu
