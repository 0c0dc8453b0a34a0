from __future__ import annotations

import asyncio

import pytest
from daemon_fakes import SESSION, down, until, within

from looseleaf.errors import CapacityExceeded, Conflict, LooseLeafError, Timeout
from looseleaf.services.worker_daemon import save_patience
from looseleaf.services.worker_daemon.save_patience import SavePatience

AWAY = [down(), Timeout("STORE_TIMEOUT", "silent"), CapacityExceeded("STORE_BUSY", "busy")]


class Store:
    """Raises `errors` one by one, and then answers; it may hold its answers."""

    def __init__(self, *errors: LooseLeafError) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def call(self) -> str:
        self.calls += 1
        await self.answers.wait()
        if self.errors:
            raise self.errors.pop(0)
        return "taken"


async def test_call_is_repeated_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_patience, "RETRY_S", 0.0)
    store = Store(*AWAY)
    assert await SavePatience(3600.0).take(SESSION, store.call) == "taken"
    assert store.calls == 4


@pytest.mark.parametrize(
    ("patience_s", "error"),
    [(0.0, down()), (0.0, AWAY[1]), (60.0, Conflict("MOVED", "")), (60.0, CapacityExceeded("SESSION_FULL", ""))],
)
async def test_what_does_not_pass_or_has_no_time_is_raised_at_once(patience_s: float, error: LooseLeafError) -> None:
    store = Store(error)
    with pytest.raises(type(error)):
        await SavePatience(patience_s).take(SESSION, store.call)
    assert store.calls == 1


async def test_full_store_passes_for_what_can_wait_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_patience, "RETRY_S", 0.0)
    full = CapacityExceeded("STORE_FULL", "full")
    patience = SavePatience(3600.0)
    assert await patience.take(SESSION, Store(full).call, full_passes=True) == "taken"
    with pytest.raises(CapacityExceeded):
        await patience.take(SESSION, Store(full).call)


@pytest.mark.parametrize("away", ["refusing", "silent"])
async def test_store_that_stays_away_is_told_once(monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    monkeypatch.setattr(save_patience, "RETRY_S", 0.0)
    monkeypatch.setattr(save_patience, "AWAY_TOLD_AFTER_S", 0.0)
    store, patience = Store(), SavePatience(3600.0)
    heard: list[LooseLeafError] = []
    patience.on_held_up = heard.append
    if away == "silent":
        store.answers.clear()
    else:
        store.errors = [down()] * 1_000_000
    taking = asyncio.create_task(patience.take(SESSION, store.call))
    await until(lambda: bool(heard))
    store.answers.set()
    store.errors.clear()
    assert await within(taking) == "taken"
    assert [error.reason for error in heard] == ["STORE_TIMEOUT" if away == "silent" else "STORE_DOWN"]


async def test_peer_that_has_gone_ends_silence_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_patience, "RETRY_S", 3600.0)
    silent, refusing = Store(), Store(down())
    silent.answers.clear()
    patience = SavePatience(3600.0, last_patience_s=0.02)
    takings = [asyncio.create_task(patience.take(SESSION, store.call)) for store in (silent, refusing)]
    await until(lambda: bool(silent.calls and refusing.calls))
    patience.end()
    ended = await within(asyncio.gather(*takings, return_exceptions=True))
    assert [error.reason for error in ended if isinstance(error, LooseLeafError)] == ["STORE_TIMEOUT", "STORE_DOWN"]
    # What is asked afterwards is bounded as well.
    with pytest.raises(Timeout, match="STORE_TIMEOUT"):
        await within(patience.take(SESSION, silent.call))
    assert (silent.calls, refusing.calls) == (2, 1)
