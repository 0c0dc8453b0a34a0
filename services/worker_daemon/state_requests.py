"""What kernels and workers ask of their host about saved state; the same requests from both (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, field

import structlog

from looseleaf.checkpoint.manifest import Manifest, decode_manifest
from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.errors import (
    CapacityExceeded,
    InvalidArgument,
    LooseLeafError,
    PreconditionFailed,
    Timeout,
    Unavailable,
)
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.protocol import fields
from looseleaf.protocol.region_rows import pack_places, unpack_regions
from looseleaf.protocol.rpc import Reply
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.arena import Ring
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.core.unit_cache import UnitCache
from looseleaf.services.worker_daemon.expected_version import ExpectedVersion
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.services.worker_daemon.save_patience import STORE_FULL_REASONS, SavePatience
from looseleaf.services.worker_daemon.wire import Body
from looseleaf.units import MIB, REGION_BYTES

log = structlog.get_logger()

Handler = Callable[[Body, list[int]], Awaitable[Reply]]

REGIONS_PER_REQUEST_MAX = 100_000
UNITS_REPLY_BYTES_MAX = 16 * MIB
VERSIONS_LISTED_MAX = 1_000
# After these nobody here knows whether the store took the commit.
OUTCOME_UNKNOWN_CODES = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


@dataclass
class StateOwner:
    """Whose state a connection may read and write; a worker's is set when it is given to a session.

    `committed`: the last execution whose commit came over this connection, and the version that it made.
    `unanswered`: the last one whose commit nobody here knows the outcome of. `committing`: those whose commit is under
    way, or waits for the one before it.
    """

    session_id: SessionId = SessionId("")
    epoch: Epoch = Epoch(0)
    title: str = ""
    committed: tuple[ExecutionId, Version] = (ExecutionId(""), Version(0))
    unanswered: ExecutionId = ExecutionId("")
    committing: list[ExecutionId] = field(default_factory=list)

    def may_have_committed(self, execution_id: ExecutionId) -> bool:
        """True if the store was asked, or may yet be, and has not said whether it took that execution's commit."""
        return execution_id == self.unanswered or execution_id in self.committing


@dataclass(eq=False)
class StateRequests:
    """Handlers of one connection. Each raises a LooseLeafError, which goes back to the peer as it is.

    `on_staged(session, version, keys)`: that version is committed and has `keys` in this host's arena only.
    """

    owner: StateOwner
    regions: HostRegions
    store: StoreClient
    host_id: str
    ring_bytes: int
    on_staged: Callable[[SessionId, Version, list[RegionKey]], None]
    # Whether what is staged goes to the store's disk soon, so that a save must fit there.
    stores_soon: bool = True
    # Whether the peer's state lives nowhere else: then a full store keeps it from being durable, not from being saved.
    only_copy: bool = False
    # By which the peer's saves go, unless by `store`: one that repeats nothing by itself, as `patience` does that.
    saves: StoreClient | None = None
    patience: SavePatience = field(default_factory=SavePatience)
    # One for all connections.
    units: UnitCache = field(default_factory=UnitCache)
    _ring: Ring | None = None
    _segments_sent: set[int] = field(default_factory=set)
    # Pins the regions that the save under way found here or put here, until its commit.
    _save: object = field(default_factory=object)
    _admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    # How many asks for room there were, and what the last save asked for, in all the parts of its ask.
    _asks: int = 0
    _slots_asked: int = 0
    # Bytes of the store's disk that its parts will take, and why it is saved although they do not fit.
    _bytes_asked: int = 0
    _store_full: CapacityExceeded | None = None
    # Regions of the last version that was committed over this connection.
    _named: set[RegionKey] = field(default_factory=set)
    # One at a time, so that a repeat finds the pins of the one before if that was refused.
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    expected: ExpectedVersion = field(init=False)
    _commits: set[asyncio.Task[Reply]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.expected = ExpectedVersion(self.store)

    @property
    def maps_regions(self) -> bool:
        """Whether its peer has mapped regions and not said that none of their mappings is left."""
        return bool(self.regions.table.pinned(self))

    def handlers(self) -> dict[str, Handler]:
        """Message type to handler."""
        return {
            "have_regions": self.have_regions,
            "ring": self.ring,
            "put_regions": self.put_regions,
            "put_units": self.put_units,
            "commit": self.commit,
            "manifest": self.manifest,
            "list_versions": self.list_versions,
            "fetch_units": self.fetch_units,
            "map_regions": self.map_regions,
            "unmap_regions": self.unmap_regions,
        }

    async def close(self) -> None:
        """The peer's process has ended: its ring and its pins go, after its last commit was answered.

        A store that does not answer is waited for as `SavePatience` bounds it; `owner.unanswered` then tells so.
        """
        self.patience.end()
        self.expected.forget()
        while self._commits:
            await asyncio.wait(self._commits)
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self.regions.end_save(self._save)
        self.regions.unpin(self)
        self.regions.unpin(self._save)

    @property
    def _saves(self) -> StoreClient:
        return self.saves or self.store

    def _session(self) -> SessionId:
        if not self.owner.session_id:
            raise PreconditionFailed("NO_SESSION", "this connection was not given a session yet")
        return self.owner.session_id

    async def have_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Indices of the regions that this host lacks; the others stay here until the next commit.

        When it returns there is room for those that lack, and with `continues` for those of the asks that it goes on
        from, and the version of `session_bytes` to come is within all quotas. Raises CapacityExceeded `ARENA_FULL` if
        no room came in time, `SESSION_FULL`, and unless `only_copy` `TENANT_FULL` or `STORE_FULL`; then there is none
        for these either.
        """
        session_id = self._session()
        keys = region_keys(body)
        continues = fields.boolean(body, "continues", False)
        session_bytes = fields.integer(body, "session_bytes", 0)
        async with self._admission:
            if not continues:
                self._bytes_asked, self._store_full = 0, None
            missing = self.regions.missing(keys, self._save)
            if missing:
                new = [keys[index] for index in missing] if self.stores_soon else []
                await self._admit_at_store(session_id, session_bytes, new)
            self._asks += 1
            self._slots_asked = len(missing) + (self._slots_asked if continues else 0)
            await self.regions.admit(self._save, self._slots_asked)
        return Reply({"missing": missing})

    async def _admit_at_store(self, session_id: SessionId, session_bytes: int, new: list[RegionKey]) -> None:
        try:
            self._bytes_asked += await self.patience.take(
                session_id, lambda: self._saves.admit_save(session_id, session_bytes, new, self._bytes_asked)
            )
        except BaseException as error:
            if isinstance(error, CapacityExceeded) and self.only_copy and error.reason in STORE_FULL_REASONS:
                # Without its GPU nobody would have it any more: it is staged, and waits here for room at the store.
                log.warning("save_waits_for_room", session=session_id, reason=error.reason)
                self._store_full = error
                return
            self.regions.end_save(self._save)
            self.regions.unpin(self._save)
            raise

    def take_store_full(self) -> CapacityExceeded | None:
        """Why the last save waits here, on this host only, until the store has room; None if it does not. Once."""
        error, self._store_full = self._store_full, None
        return error

    async def ring(self, _body: Body, _fds: list[int]) -> Reply:
        """The connection's shared ring, made at the first ask."""
        if self._ring is None:
            self._ring = Ring(self.ring_bytes)
        return Reply({"size_bytes": self._ring.size_bytes, "slot_bytes": REGION_BYTES}, [self._ring.fd])

    async def put_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Takes regions out of ring slots; the slots may be reused after the reply, also after an error.

        After an error nothing of the message is kept, nor the room that the save has not taken yet.
        """
        if self._ring is None:
            raise PreconditionFailed("NO_RING", "regions were announced before the ring was asked for")
        self._session()
        ring = self._ring
        rows = fields.rows(body, "regions", bytes, int, int)
        items = [((region_id, length), ring.view(slot, length)) for region_id, length, slot in rows]
        batch, asks = object(), self._asks
        try:
            puts = [self.regions.put(key, source, batch, save=self._save) for key, source in items]
            for ended in await asyncio.gather(*puts, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended
            self.regions.missing([key for key, _source in items], self._save)
        except BaseException:
            # Not the room of a newer save that asked meanwhile.
            if asks == self._asks and not self._admission.locked():
                self.regions.end_save(self._save)
            raise
        finally:
            self.regions.unpin(batch)
        return Reply({})

    async def put_units(self, body: Body, _fds: list[int]) -> Reply:
        """Hands units on to the store."""
        session_id = self._session()
        units = [(unit_hash, data) for unit_hash, data in fields.rows(body, "units", bytes, bytes)]
        # Regions could stay in the arena while the store is full, units cannot.
        await self.patience.take(session_id, lambda: self._saves.put_units(units), full_passes=True)
        self.units.keep(session_id, units)
        return Reply({})

    async def commit(self, body: Body, _fds: list[int]) -> Reply:
        """Makes a manifest the session's newest version; *staged* when it returns.

        It goes on when the peer dies meanwhile: the store may have taken the commit, and then its regions must stay.
        """
        session_id = self._session()
        data = fields.data(body, "manifest")
        decoded = decode_manifest(data)
        if decoded.session_id != session_id:
            raise InvalidArgument("MANIFEST_FOREIGN", "a manifest names another session than its connection's")
        request = {
            "epoch": fields.integer(body, "epoch"),
            "parent": fields.integer(body, "parent"),
            "execution_id": fields.text(body, "execution_id"),
            "manifest": data,
        }
        task = asyncio.create_task(self._commit(session_id, decoded, request))
        self._commits.add(task)
        task.add_done_callback(self._commit_ended)
        return await asyncio.shield(task)

    async def _commit(self, session_id: SessionId, decoded: Manifest, request: Body) -> Reply:
        named = {(ref.region_id, ref.length_bytes) for ref in decoded.region_refs()}
        async with self._told_of(ExecutionId(request["execution_id"])), self._committing:
            # A peer that gave up waiting may begin another save meanwhile: each has pins of its own.
            save, self._save = self._save, object()
            try:
                reply = await self._commit_save(save, named, session_id, decoded.version, request)
            except BaseException:
                # For a repeat.
                self.regions.missing(self.regions.table.pinned(save), self._save)
                raise
            finally:
                self.regions.end_save(save)
                self.regions.unpin(save)
            self.regions.supersede(self._named - named)
            self._named = named
            return reply

    @asynccontextmanager
    async def _told_of(self, execution_id: ExecutionId) -> AsyncIterator[None]:
        self.owner.committing.append(execution_id)
        try:
            yield
        finally:
            self.owner.committing.remove(execution_id)

    async def _commit_save(
        self, save: object, named: set[RegionKey], session_id: SessionId, expected: Version, request: Body
    ) -> Reply:
        keys = [key for key in self.regions.table.pinned(save) if key in named]
        execution_id = ExecutionId(request["execution_id"])
        try:
            version, durable = await self._commit_at_store(session_id, expected, request)
        except LooseLeafError as error:
            if error.code in OUTCOME_UNKNOWN_CODES:
                self.owner.unanswered = execution_id
                self.on_staged(session_id, expected, keys)
            raise
        self.owner.committed = execution_id, Version(version)
        if durable:
            self.regions.let_go(keys)
        else:
            self.on_staged(session_id, Version(version), keys)
        return Reply({"version": version, "durable": durable})

    async def _commit_at_store(self, session_id: SessionId, expected: Version, request: Body) -> tuple[int, bool]:
        """As `StoreClient.commit`. For a peer that has gone an unanswered commit is not repeated, but looked for."""
        try:
            return await self.patience.take(
                session_id, lambda: self._saves.commit(session_id, host_id=self.host_id, **request)
            )
        except (Unavailable, Timeout) as error:
            if not self.patience.peer_gone:
                raise
            unanswered = error
        try:
            found = await self.patience.take(session_id, lambda: self._saves.manifest(session_id, version=expected))
        except LooseLeafError as error:
            log.info("commit_not_looked_for", session=session_id, reason=error.reason)
            raise unanswered from error
        if found.manifest != request["manifest"]:
            # One that is still on its way may come through yet.
            raise unanswered
        return found.version, False

    def _commit_ended(self, task: asyncio.Task[Reply]) -> None:
        self._commits.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Read here too, for a peer that is gone.
            log.info("commit_refused", session=self.owner.session_id, why=str(getattr(error, "reason", type(error))))

    async def manifest(self, body: Body, _fds: list[int]) -> Reply:
        """One manifest of the session and the session's head."""
        version, known_version = fields.integer(body, "version", 0), fields.integer(body, "known_version", 0)
        answer = await self.expected.take(Version(version))
        if answer is None:
            answer = await self.store.manifest(self._session(), version=version, known_version=known_version)
        return Reply(
            {
                "version": answer.version,
                "head": answer.head.version,
                "epoch": answer.head.epoch,
                "durable_version": answer.head.durable_version,
                "manifest": answer.manifest or None,
            }
        )

    async def list_versions(self, body: Body, _fds: list[int]) -> Reply:
        """The session's kept versions, newest first."""
        limit = min(fields.integer(body, "limit", 0) or VERSIONS_LISTED_MAX, VERSIONS_LISTED_MAX)
        found = await self.store.list_versions(self._session(), limit)
        return Reply({"versions": [list(astuple(ListedVersion.of(entry))) for entry in found]})

    async def fetch_units(self, body: Body, _fds: list[int]) -> Reply:
        """Units by hash, as many as fit a frame; the peer asks again for the rest."""
        session_id = self._session()
        hashes = fields.sequence(body, "hashes")
        if not all(isinstance(value, bytes) for value in hashes):
            raise InvalidArgument("FIELD_MALFORMED", "unit hashes are bytes")
        found = self.units.find(session_id, hashes)
        if missing := [unit_hash for unit_hash in hashes if unit_hash not in found]:
            fetched = await self.store.get_units(missing)
            self.units.keep(session_id, fetched.items())
            found.update(fetched)
        units: list[list[bytes]] = []
        size = 0
        for unit_hash, data in found.items():
            size += len(data)
            if units and size > UNITS_REPLY_BYTES_MAX:
                break
            units.append([unit_hash, data])
        return Reply({"units": units})

    async def map_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Where regions lie, with a descriptor of each segment that this connection has not got yet."""
        self._session()
        slots = await self.regions.ensure(unpack_regions(body, count_max=REGIONS_PER_REQUEST_MAX), self)
        new = [
            segment for segment in dict.fromkeys(slot.segment for slot in slots) if segment not in self._segments_sent
        ]
        self._segments_sent.update(new)
        places = pack_places((slot.segment, slot.index) for slot in slots)
        return Reply({"segments": new, "places": places}, [self.regions.arena.readonly_fd(segment) for segment in new])

    async def unmap_regions(self, body: Body, _fds: list[int]) -> Reply:
        """The peer no longer maps these regions: one mapping less of each."""
        self.regions.unpin(self, region_keys(body))
        return Reply({})


def region_keys(body: Body) -> list[RegionKey]:
    """The message's `regions` as keys. Raises InvalidArgument `FIELD_MALFORMED` or `MESSAGE_TOO_LONG`."""
    rows = fields.rows(body, "regions", bytes, int)
    if len(rows) > REGIONS_PER_REQUEST_MAX:
        raise InvalidArgument("MESSAGE_TOO_LONG", f"a message names at most {REGIONS_PER_REQUEST_MAX} regions")
    if any(len(region_id) != 16 for region_id, _length in rows):
        raise InvalidArgument("FIELD_MALFORMED", "a region id has 16 bytes")
    return rows
