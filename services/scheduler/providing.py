"""Carries out what the policy wants of the host provider, and tells it what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from looseleaf.errors import LooseLeafError
from looseleaf.ids import HostId
from looseleaf.logs import get_logger
from looseleaf.services.scheduler.core.actions import DrainHost, PowerOn, StopHost, UndrainHost
from looseleaf.services.scheduler.core.events import (
    Event,
    HostEnded,
    HostsProvided,
    HostsStarting,
    PowerOnFailed,
    StopHostFailed,
)
from looseleaf.services.scheduler.core.shapes import HostShape
from looseleaf.services.scheduler.host_provider import HostProvider

# How often the provider is asked which hosts there are, and how soon again if it does not say.
LIST_S: Final = 30.0
RETRY_S: Final = 2.0

log = get_logger()

ProviderAction = PowerOn | DrainHost | UndrainHost | StopHost


class Providing:
    """`put` takes an event for the policy. One call of the provider at a time: what it says never overtakes itself."""

    def __init__(self, provider: HostProvider, put: Callable[[Event], None]) -> None:
        self._provider = provider
        self._put = put
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Tells which hosts may be ended (until then none) and which of them run, again and again; for ever."""
        self._put(HostsProvided(frozenset()))
        while True:
            listed = await self.look()
            await asyncio.sleep(LIST_S if listed else RETRY_S)

    async def look(self) -> bool:
        """Asks once; False if the provider did not say."""
        async with self._turn:
            try:
                shapes = await self._provider.shapes()
                hosts = await self._provider.list()
            except LooseLeafError as error:
                log.warning("provider_not_listed", reason=error.reason, message=error.message)
                return False
            running = frozenset(host.host_id for host in hosts if host.paid)
            self._put(HostsProvided(frozenset(host.host_id for host in hosts), running, shapes))
        return True

    async def carry_out(self, action: ProviderAction) -> None:
        """One action, tried once: the policy orders a stop again that failed."""
        async with self._turn:
            match action:
                case PowerOn(count, shape):
                    await self._power_on(count, shape)
                case DrainHost(host_id) | UndrainHost(host_id):
                    try:
                        await self._provider.drain(host_id, undo=isinstance(action, UndrainHost))
                    except LooseLeafError as error:
                        log.warning("host_not_marked", host=host_id, reason=error.reason, message=error.message)
                case StopHost(host_id):
                    await self._stop(host_id)

    async def _power_on(self, count: int, shape: HostShape) -> None:
        started: tuple[HostId, ...] = ()
        reason = "NO_MORE_HOSTS"
        try:
            started = await self._provider.ensure(count, shape)
        except LooseLeafError as error:
            reason = error.reason
        log.info(
            "hosts_starting", wanted=count, gpus=shape.gpu_count, gpu_memory_bytes=shape.gpu_memory_bytes,
            started=started)
        if started:
            self._put(HostsStarting(started, shape))
        if len(started) < count:
            self._put(PowerOnFailed(count - len(started), reason, shape))

    async def _stop(self, host_id: HostId) -> None:
        try:
            await self._provider.stop(host_id)
        except LooseLeafError as error:
            log.error("host_not_ended", host=host_id, reason=error.reason, message=error.message)
            self._put(StopHostFailed(host_id, error.reason))
        else:
            log.info("host_ended", host=host_id)
            self._put(HostEnded(host_id))
