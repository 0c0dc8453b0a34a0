"""What the policy wants of the provider, and what it learns of it."""

from __future__ import annotations

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import HostId
from looseleaf.services.scheduler import providing
from looseleaf.services.scheduler.core.actions import DrainHost, PowerOn, StopHost, UndrainHost
from looseleaf.services.scheduler.core.events import Event, HostsProvided, PowerOnFailed
from looseleaf.services.scheduler.host_provider import ProvidedHost
from looseleaf.services.scheduler.providing import Providing


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
        return [ProvidedHost(HostId("h1"), "standby"), ProvidedHost(HostId("h2"), "up")]

    async def ensure(self, count: int) -> int:
        self._called("ensure", count)
        return min(count, 2)

    async def drain(self, host_id: HostId, *, undo: bool = False) -> None:
        self._called("undrain" if undo else "drain", host_id)

    async def stop(self, host_id: HostId) -> None:
        self._called("stop", host_id)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providing, "RETRY_S", 0.0)


async def test_nothing_may_be_ended_before_the_provider_has_said_what_is_its_own() -> None:
    events: list[Event] = []
    await Providing(Provider(failures=2), events.append).announce()
    assert events == [HostsProvided(frozenset()), HostsProvided(frozenset({HostId("h1"), HostId("h2")}))]


@pytest.mark.parametrize(("failures", "events"), [
    (0, [PowerOnFailed(1, "NO_MORE_HOSTS")]), (1, [PowerOnFailed(3, "PROVIDER_DOWN")])])
async def test_hosts_that_could_not_be_started_are_told(failures: int, events: list[Event]) -> None:
    told: list[Event] = []
    await Providing(Provider(failures), told.append).carry_out(PowerOn(3))
    assert told == events


async def test_orders_reach_the_provider_and_an_end_is_tried_until_it_works() -> None:
    provider = Provider()
    carry_out = Providing(provider, lambda _event: None).carry_out
    await carry_out(DrainHost(HostId("h1")))
    await carry_out(UndrainHost(HostId("h1")))
    provider.failures = 3
    await carry_out(StopHost(HostId("h1")))
    provider.failures = 1
    await carry_out(DrainHost(HostId("h2")))
    assert provider.calls == [("drain", "h1"), ("undrain", "h1"), ("stop", "h1")]
