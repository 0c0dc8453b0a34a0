"""Carries out what the policy wants of the host provider, and tells it what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from looseleaf.errors import LooseLeafError
from looseleaf.logs import get_logger
from looseleaf.services.scheduler.core.actions import DrainHost, PowerOn, StopHost, UndrainHost
from looseleaf.services.scheduler.core.events import Event, HostsProvided, PowerOnFailed
from looseleaf.services.scheduler.host_provider import HostProvider

ATTEMPTS_MAX: Final = 30
RETRY_S: Final = 2.0

log = get_logger()

ProviderAction = PowerOn | DrainHost | UndrainHost | StopHost


class Providing:
    """`put` takes an event for the policy."""

    def __init__(self, provider: HostProvider, put: Callable[[Event], None]) -> None:
        self._provider = provider
        self._put = put

    async def announce(self) -> None:
        """Tells which hosts may be ended; until then none."""
        self._put(HostsProvided(frozenset()))
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                hosts = await self._provider.list()
            except LooseLeafError as error:
                log.warning("provider_not_listed", reason=error.reason, message=error.message, attempt=attempt)
                await asyncio.sleep(RETRY_S)
            else:
                self._put(HostsProvided(frozenset(host.host_id for host in hosts)))
                return

    async def carry_out(self, action: ProviderAction) -> None:
        """One action. A host that cannot be ended is tried again, since nobody counts on it any more."""
        match action:
            case PowerOn(count):
                await self._power_on(count)
            case DrainHost(host_id) | UndrainHost(host_id):
                try:
                    await self._provider.drain(host_id, undo=isinstance(action, UndrainHost))
                except LooseLeafError as error:
                    log.warning("host_not_marked", host=host_id, reason=error.reason, message=error.message)
            case StopHost(host_id):
                for attempt in range(1, ATTEMPTS_MAX + 1):
                    try:
                        await self._provider.stop(host_id)
                    except LooseLeafError as error:
                        log.error(
                            "host_not_ended", host=host_id, reason=error.reason, message=error.message, attempt=attempt)
                        await asyncio.sleep(RETRY_S)
                    else:
                        log.info("host_ended", host=host_id)
                        return

    async def _power_on(self, count: int) -> None:
        try:
            started, reason = await self._provider.ensure(count), "NO_MORE_HOSTS"
        except LooseLeafError as error:
            started, reason = 0, error.reason
        log.info("hosts_starting", wanted=count, started=started)
        if started < count:
            self._put(PowerOnFailed(count - started, reason))
