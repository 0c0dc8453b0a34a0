"""How long what a peer saves is asked of a store that is out of reach, too busy or full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from looseleaf.errors import CapacityExceeded, LooseLeafError, Timeout, Unavailable
from looseleaf.ids import SessionId

T = TypeVar("T")

log = structlog.get_logger()

STORE_FULL_REASONS: Final = frozenset({"TENANT_FULL", "STORE_FULL"})
RETRY_S: Final = 0.5
# A store that is away no longer than a restart takes is no news to anybody.
AWAY_TOLD_AFTER_S: Final = 10.0
# A peer's end waits so long for its last commit: half of it for the answer that is due, half to ask what became of it.
LAST_PATIENCE_S: Final = 8.0


class SavePatience:
    """Repeats calls of one peer's saves for `patience_s`, each time anew; `on_held_up` hears why, once for each call.

    Where nobody else has what is saved that is long; with 0 nothing is repeated. Once the peer has gone nothing is
    repeated either, and no call lasts longer than half of `last_patience_s`.
    """

    def __init__(self, patience_s: float = 0.0, last_patience_s: float = LAST_PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.last_patience_s = last_patience_s
        self.on_held_up: Callable[[LooseLeafError], None] = lambda _why: None
        self._gone = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()

    @property
    def peer_gone(self) -> bool:
        """Nobody waits for what is saved any more."""
        return self._gone.is_set()

    def end(self) -> None:
        """The peer has gone."""
        if not self._gone.is_set():
            self._gone.set()
            for limit in self._limits:
                limit.reschedule(self._last_moment())

    def _last_moment(self) -> float:
        return asyncio.get_running_loop().time() + self.last_patience_s / 2

    async def take(self, session_id: SessionId, call: Callable[[], Awaitable[T]], *, full_passes: bool = False) -> T:
        """What `call()` returns, which may be repeated; also at a full store if `full_passes`.

        Raises its last error, or Timeout `STORE_TIMEOUT` if it was cut off because the peer has gone.
        """
        began_s, held = time.monotonic(), _HeldUp(session_id, self.on_held_up)
        timer = asyncio.get_running_loop().call_later(AWAY_TOLD_AFTER_S, held.tell) if self.patience_s else None
        try:
            while True:
                try:
                    return await self._bounded(call)
                except (Unavailable, Timeout, CapacityExceeded) as error:
                    held.why = error
                    full = error.reason in STORE_FULL_REASONS
                    over = self.peer_gone or time.monotonic() - began_s >= self.patience_s
                    if over or not (_passes(error) or (full and full_passes)):
                        raise
                    if full:
                        held.tell()
                await self._pause()
                if self.peer_gone:
                    raise held.why
        finally:
            if timer is not None:
                timer.cancel()

    async def _bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        limit = asyncio.timeout_at(self._last_moment() if self.peer_gone else None)
        self._limits.add(limit)
        try:
            async with limit:
                return await call()
        except TimeoutError as error:
            raise Timeout("STORE_TIMEOUT", "the store did not answer before its caller had gone") from error
        finally:
            self._limits.discard(limit)

    async def _pause(self) -> None:
        """Until the next try; not longer than the peer is there."""
        try:
            async with asyncio.timeout(RETRY_S):
                await self._gone.wait()
        except TimeoutError:
            return


class _HeldUp:
    """One call that the store does not take, and `why` not."""

    def __init__(self, session_id: SessionId, hear: Callable[[LooseLeafError], None]) -> None:
        self.why: LooseLeafError = Timeout("STORE_TIMEOUT", "the store does not answer")
        self._session_id = session_id
        self._hear = hear
        self._told = False

    def tell(self) -> None:
        """Once."""
        if not self._told:
            self._told = True
            log.warning("save_held_up", session=self._session_id, reason=self.why.reason)
            self._hear(self.why)


def _passes(error: LooseLeafError) -> bool:
    """Whether the store is away or too busy."""
    return isinstance(error, (Unavailable, Timeout)) or error.reason == "STORE_BUSY"
