"""Brings staged versions to the store's disk in the background (design §7: staged, then durable)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import SessionId, Version
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.regions import HostRegions

log = structlog.get_logger()

# Versions of one session that wait; beyond it the oldest is given up.
VERSIONS_PER_SESSION_MAX = 64
RETRY_DELAY_S_MIN = 1.0
RETRY_DELAY_S_MAX = 60.0
# For so long a version waits for regions that another host has to upload.
FOREIGN_REGIONS_WAIT_S = 120.0
# The store names at most so many missing regions in one answer.
MISSING_TOLD_MAX = 100_000
STOP_LIMIT_S = 6.0


@dataclass(eq=False)
class _Staged:
    """A version, and those of its regions that nobody but this host may have; it pins them."""

    version: Version
    keys: set[RegionKey]


@dataclass
class _Session:
    waiting: deque[_Staged] = field(default_factory=deque)
    # Regions of versions that cannot be made durable themselves: newer ones may name them.
    given_up: _Staged = field(default_factory=lambda: _Staged(Version(0), set()))
    retry_at_s: float = 0.0
    delay_s: float = field(default_factory=lambda: RETRY_DELAY_S_MIN)
    foreign_since_s: float | None = None

    def failed(self, now_s: float) -> None:
        self.retry_at_s, self.delay_s = now_s + self.delay_s, min(self.delay_s * 2, RETRY_DELAY_S_MAX)


class DurabilityQueue:
    """Uploads each session's versions in the order of their commits, the sessions in turn.

    A version that cannot be uploaded now is tried again later, and other sessions do not wait for it. Until then its
    regions stay in the arena: a full arena refuses new saves rather than lose a staged one.

    `put`: RegionUploads.put.
    """

    def __init__(
        self, store: StoreClient, regions: HostRegions, put: Callable[[Sequence[RegionKey]], Awaitable[None]]
    ) -> None:
        self._store = store
        self._regions = regions
        self._put = put
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()
        self._added = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Versions that are staged and not durable yet."""
        return sum(len(session.waiting) for session in self._sessions.values())

    def start(self) -> None:
        """Begins to upload."""
        self._task = asyncio.create_task(self._run())

    def add(self, session_id: SessionId, version: Version, keys: Iterable[RegionKey]) -> None:
        """A version was staged here; `keys`: its regions that the version before did not have."""
        staged = _Staged(version, set(keys))
        self._regions.table.stage(staged.keys, staged)
        session = self._sessions.setdefault(session_id, _Session())
        session.waiting.append(staged)
        if len(session.waiting) > VERSIONS_PER_SESSION_MAX:
            self._give_up(session)
        self._idle.clear()
        self._added.set()

    async def flushed(self) -> None:
        """Returns when everything added so far is durable or was given up."""
        await self._idle.wait()

    async def _run(self) -> None:
        while True:
            self._added.clear()
            session_id = self._next()
            if session_id is None:
                await self._until_due()
                continue
            self._sessions.move_to_end(session_id)
            try:
                await self._upload(session_id, self._sessions[session_id])
            except Exception:
                log.exception("upload_failed_unexpectedly", session=session_id)
                self._sessions[session_id].failed(time.monotonic())
            if self.waiting == 0:
                self._idle.set()

    def _next(self) -> SessionId | None:
        now_s = time.monotonic()
        due = (key for key, session in self._sessions.items() if session.waiting and session.retry_at_s <= now_s)
        return next(due, None)

    async def _until_due(self) -> None:
        waits = [session.retry_at_s for session in self._sessions.values() if session.waiting]
        timeout_s = max(0.0, min(waits) - time.monotonic()) if waits else None
        try:
            await asyncio.wait_for(self._added.wait(), timeout_s)
        except TimeoutError:
            return  # a retry is due

    async def _upload(self, session_id: SessionId, session: _Session) -> None:
        """One try of the session's oldest version."""
        staged = session.waiting[0]
        try:
            missing = await self._missing(session_id, staged)
            if missing and any(key in self._regions.table for key in missing):
                await self._put(missing)
                missing = await self._missing(session_id, staged)
        except LooseLeafError as error:
            self._refused(session_id, session, staged, error)
            return
        if not missing:
            log.info("version_durable", session=session_id, version=staged.version)
            self._durable(session_id, session, staged)
        else:
            self._incomplete(session_id, session, staged, missing)

    async def _missing(self, session_id: SessionId, staged: _Staged) -> list[RegionKey]:
        """Regions of the version that the store's disk lacks; its others need not stay here."""
        durable, missing = await self._store.mark_durable(session_id, staged.version)
        if not durable and len(missing) < MISSING_TOLD_MAX:
            self._let_go(staged, staged.keys.difference(missing))
        return [] if durable else missing

    def _durable(self, session_id: SessionId, session: _Session, staged: _Staged) -> None:
        """Whatever an older version needs beyond this one is no use to its session any more."""
        session.waiting.popleft()
        for entry in (session.given_up, staged):
            self._let_go(entry, set(entry.keys))
        session.delay_s, session.foreign_since_s = RETRY_DELAY_S_MIN, None
        if not session.waiting:
            del self._sessions[session_id]

    def _let_go(self, staged: _Staged, keys: set[RegionKey]) -> None:
        staged.keys -= keys
        self._regions.let_go(keys)
        self._regions.unpin(staged, list(keys))

    def _refused(self, session_id: SessionId, session: _Session, staged: _Staged, error: LooseLeafError) -> None:
        log.warning("upload_failed", session=session_id, version=staged.version, reason=error.reason)
        if error.reason == "SESSION_UNKNOWN":
            for entry in (session.given_up, *session.waiting):
                self._let_go(entry, set(entry.keys))
            del self._sessions[session_id]
        elif error.reason == "VERSION_UNKNOWN":
            # Retention, a fallback, or a commit that was refused after all: a newer version may name its regions.
            self._give_up(session)
        else:
            session.failed(time.monotonic())

    def _incomplete(
        self, session_id: SessionId, session: _Session, staged: _Staged, missing: Sequence[RegionKey]
    ) -> None:
        """Some regions are not here: another host uploads them, or they are lost."""
        now_s = time.monotonic()
        session.foreign_since_s = session.foreign_since_s or now_s
        if now_s - session.foreign_since_s < FOREIGN_REGIONS_WAIT_S:
            session.failed(now_s)
            return
        log.error("staged_regions_missing", session=session_id, version=staged.version, regions=len(missing))
        self._give_up(session)

    def _give_up(self, session: _Session) -> None:
        """The oldest version waits no longer; its regions stay until a newer one is durable."""
        staged = session.waiting.popleft()
        self._regions.table.stage(staged.keys - session.given_up.keys, session.given_up)
        session.given_up.keys |= staged.keys
        self._regions.unpin(staged)
        session.delay_s, session.foreign_since_s = RETRY_DELAY_S_MIN, None

    async def stop(self) -> None:
        """Uploads what it can within `STOP_LIMIT_S`; what is not durable then is lost with this host's arena."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self.flushed(), STOP_LIMIT_S)
        except TimeoutError:
            for session_id, session in self._sessions.items():
                if session.waiting:
                    log.error("staged_version_lost", session=session_id, version=session.waiting[-1].version)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
