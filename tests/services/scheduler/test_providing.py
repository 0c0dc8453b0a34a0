"""What the policy wants of the provider, and what it learns of it."""

from __future__ import annotations

import asyncio

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import HostId
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
from looseleaf.services.scheduler.host_provider import ProvidedHost
from looseleaf.services.scheduler.providing import Providing

SHAPE = HostShape(2)


class Provider:
    """Two hosts; the first `failures` calls fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[tuple[object, ...]] = []

    def _called(self, *call: object) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("PROVIDER_DOWN", "not there")
        self.calls.append(call)

    async def list(self) -> list[ProvidedHost]:
        self._called("list")
        return [ProvidedHost(HostId("h1"), "standby", False), ProvidedHost(HostId("h2"), "up", True)]

    async def shapes(self) -> tuple[HostShape, ...]:
        return (SHAPE,)

    async def ensure(self, count: int, shape: HostShape) -> tuple[HostId, ...]:
        assert shape == SHAPE
        self._called("ensure", count)
        return (HostId("h1"), HostId("h3"))[:count]

    async def drain(self, host_id: HostId, *, undo: bool = False) -> None:
        self._called("undrain" if undo else "drain", host_id)

    async def stop(self, host_id: HostId) -> None:
        self._called("stop", host_id)


async def test_nothing_may_be_ended_before_the_provider_has_said_what_is_its_own_and_what_runs() -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    watching = asyncio.create_task(Providing(Provider(), events.put_nowait).watch())
    owned = frozenset({HostId("h1"), HostId("h2")})
    async with asyncio.timeout(10):
        assert await events.get() == HostsProvided(frozenset())
        assert await events.get() == HostsProvided(owned, frozenset({HostId("h2")}), (SHAPE,))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_provider_that_does_not_list_its_hosts_changes_nothing() -> None:
    events: list[Event] = []
    providing = Providing(Provider(failures=1), events.append)
    assert (await providing.look(), events) == (False, [])
    assert await providing.look()


@pytest.mark.parametrize(("failures", "events"), [
    (0, [HostsStarting((HostId("h1"), HostId("h3")), SHAPE), PowerOnFailed(1, "NO_MORE_HOSTS", SHAPE)]),
    (1, [PowerOnFailed(3, "PROVIDER_DOWN", SHAPE)])])
async def test_hosts_that_start_and_those_that_cannot_are_told(failures: int, events: list[Event]) -> None:
    told: list[Event] = []
    await Providing(Provider(failures), told.append).carry_out(PowerOn(3, SHAPE))
    assert told == events


async def test_orders_reach_the_provider_and_each_end_is_answered() -> None:
    provider, told = Provider(), list[Event]()
    carry_out = Providing(provider, told.append).carry_out
    await carry_out(DrainHost(HostId("h1")))
    await carry_out(UndrainHost(HostId("h1")))
    provider.failures = 1
    await carry_out(DrainHost(HostId("h2")))
    provider.failures = 1
    await carry_out(StopHost(HostId("h1")))
    await carry_out(StopHost(HostId("h1")))
    assert provider.calls == [("drain", "h1"), ("undrain", "h1"), ("stop", "h1")]
    assert told == [StopHostFailed(HostId("h1"), "PROVIDER_DOWN"), HostEnded(HostId("h1"))]


async def test_what_the_provider_says_never_overtakes_itself() -> None:
    class Slow(Provider):
        asked = asyncio.Event()
        answer = asyncio.Event()

        async def list(self) -> list[ProvidedHost]:
            self.asked.set()
            await self.answer.wait()
            return await super().list()

    provider, told = Slow(), list[Event]()
    providing = Providing(provider, told.append)
    looking = asyncio.create_task(providing.look())
    await provider.asked.wait()
    starting = asyncio.create_task(providing.carry_out(PowerOn(1, SHAPE)))
    provider.answer.set()
    await asyncio.gather(looking, starting)
    assert [type(event) for event in told] == [HostsProvided, HostsStarting]
