"""Brings staged versions to the store's disk in the background (design §7: staged, then durable)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import SessionId, Version
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.core.upload_order import (
    Asked,
    Committed,
    Event,
    Failed,
    Pin,
    Retiring,
    Stopping,
    Stored,
    Tried,
    Unpin,
    Upload,
    UploadOrder,
)
from looseleaf.services.worker_daemon.regions import HostRegions

log = structlog.get_logger()

# The store names at most so many missing regions in one answer.
MISSING_TOLD_MAX = 100_000
STOP_LIMIT_S = 6.0


class DurabilityQueue:
    """Uploads one version at a time, in the order of UploadOrder.

    A version that cannot be uploaded now is tried again later, and other sessions do not wait for it. Until then its
    regions stay in the arena: a full arena refuses new saves rather than lose a staged one.

    `put`: RegionUploads.put. `eager` False: versions stay *staged* until room in the arena is short, or the stop.
    """

    def __init__(
        self,
        store: StoreClient,
        regions: HostRegions,
        put: Callable[[Sequence[RegionKey]], Awaitable[None]],
        *,
        eager: bool = True,
    ) -> None:
        self._store = store
        self._regions = regions
        self._put = put
        self._order = UploadOrder(eager=eager)
        self._added = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Versions that are staged, neither durable nor given up."""
        return self._order.versions_waiting

    @property
    def staged_sessions(self) -> int:
        """Sessions that would lose a version with this host, given-up ones included."""
        return len(self._order.waiting)

    def hurry(self) -> None:
        """The host is to end: uploads everything now and from now on, also what was given up or is to stay staged."""
        self._handle(Retiring())
        if self.waiting:
            self._idle.clear()
        self._added.set()

    def start(self) -> None:
        """Begins to upload."""
        self._task = asyncio.create_task(self._run())

    def add(self, session_id: SessionId, version: Version, keys: Iterable[RegionKey]) -> None:
        """A version was staged here; `keys`: its regions that the version before did not have."""
        self._handle(Committed(session_id, version, frozenset(keys)))
        self._idle.clear()
        self._added.set()

    async def flushed(self) -> None:
        """Returns when everything added so far is durable or was given up."""
        await self._idle.wait()

    def _handle(self, event: Event) -> Upload | None:
        upload = None
        for action in self._order.handle(event, time.monotonic()):
            match action:
                case Pin(holder, keys):
                    self._regions.table.stage(keys, holder)
                case Unpin(holder, keys, expendable):
                    if expendable:
                        self._regions.let_go(keys)
                    self._regions.unpin(holder, list(keys))
                case Upload():
                    upload = action
        return upload

    async def _run(self) -> None:
        while True:
            self._added.clear()
            upload = self._handle(Asked(self._regions.pressed.is_set()))
            if upload is None:
                await self._until_due()
                continue
            try:
                await self._upload(upload)
            except Exception:
                log.exception("upload_failed_unexpectedly", session=upload.session_id)
                self._handle(Failed(upload.session_id, "BUG"))
            if self.waiting == 0:
                self._idle.set()

    async def _until_due(self) -> None:
        pressed = self._regions.pressed
        due_s = self._order.due_s(pressed.is_set())
        timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        # Pressure that is there already changed nothing; only one that comes does.
        events = [self._added] if self._order.eager or pressed.is_set() else [self._added, pressed]
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _upload(self, upload: Upload) -> None:
        """One try."""
        try:
            missing = await self._missing(upload)
            if missing and any(key in self._regions.table for key in missing):
                await self._put(missing)
                missing = await self._missing(upload)
        except LooseLeafError as error:
            if error.reason == "VERSION_UNKNOWN" and upload.rescue is not None:
                await self._rescue(upload, upload.rescue)
                return
            log.warning("upload_failed", session=upload.session_id, version=upload.version, reason=error.reason)
            self._handle(Failed(upload.session_id, error.reason))
            return
        if not missing:
            log.info("version_durable", session=upload.session_id, version=upload.version)
            self._handle(Stored(upload.session_id, frozenset()))
            return
        log.warning("regions_not_here", session=upload.session_id, version=upload.version, regions=len(missing))
        self._handle(Tried(upload.session_id))

    async def _rescue(self, upload: Upload, keys: frozenset[RegionKey]) -> None:
        try:
            if keys:
                await self._put(sorted(keys))
        except LooseLeafError as error:
            log.warning("upload_failed", session=upload.session_id, version=upload.version, reason=error.reason)
            self._handle(Failed(upload.session_id, error.reason))
            return
        log.info("regions_rescued", session=upload.session_id, version=upload.version, regions=len(keys))
        self._handle(Stored(upload.session_id, frozenset()))

    async def _missing(self, upload: Upload) -> list[RegionKey]:
        """Regions of the version that the store's disk lacks; its others need not stay here."""
        durable, missing = await self._store.mark_durable(upload.session_id, upload.version)
        if not durable and len(missing) < MISSING_TOLD_MAX:
            self._handle(Stored(upload.session_id, frozenset(missing)))
        return [] if durable else missing

    async def stop(self) -> None:
        """Uploads what it can within `STOP_LIMIT_S`, also what was given up or failed before.

        What is not durable then is lost with this host's arena, and named in the log.
        """
        if self._task is None:
            return
        self._handle(Stopping())
        if self.waiting:
            self._idle.clear()
        self._added.set()
        try:
            await asyncio.wait_for(self.flushed(), STOP_LIMIT_S)
        except TimeoutError:
            log.warning("stop_before_all_was_durable", limit_s=STOP_LIMIT_S)
        for session_id, version in self._order.waiting.items():
            log.error("staged_version_lost", session=session_id, version=version)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
