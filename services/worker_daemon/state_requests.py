"""What kernels and workers ask of their host about saved state; the same requests from both (docs/protocol.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.errors import InvalidArgument, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.protocol import fields
from looseleaf.protocol.rpc import Reply
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.arena import Ring
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.units import MIB, REGION_BYTES

Body = dict[str, Any]
Handler = Callable[[Body, list[int]], Awaitable[Reply]]

REGIONS_PER_REQUEST_MAX = 100_000
UNITS_REPLY_BYTES_MAX = 16 * MIB


@dataclass
class StateOwner:
    """Whose state a connection may read and write; a worker's is set when it is given to a session."""

    session_id: SessionId = SessionId("")
    epoch: Epoch = Epoch(0)
    execution_id: ExecutionId = ExecutionId("")
    committed_version: Version = Version(0)
    title: str = ""


@dataclass
class StateRequests:
    """Handlers of one connection. Each raises a LooseLeafError, which goes back to the peer as it is."""

    owner: StateOwner
    regions: HostRegions
    store: StoreClient
    host_id: str
    ring_bytes: int
    on_commit: Callable[[SessionId, Version, bytes], None]
    _ring: Ring | None = None
    _segments_sent: set[int] = field(default_factory=set)

    def handlers(self) -> dict[str, Handler]:
        """Message type to handler."""
        return {
            "have_regions": self.have_regions,
            "ring": self.ring,
            "put_regions": self.put_regions,
            "put_units": self.put_units,
            "commit": self.commit,
            "manifest": self.manifest,
            "fetch_units": self.fetch_units,
            "map_regions": self.map_regions,
            "unmap_regions": self.unmap_regions,
        }

    def close(self) -> None:
        """The connection ended: its ring and its pins go."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self.regions.unpin(self)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def _session(self) -> SessionId:
        if not self.owner.session_id:
            raise PreconditionFailed("NO_SESSION", "this connection was not given a session yet")
        return self.owner.session_id

    async def have_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Indices of the regions that this host lacks; the others stay here until the connection ends."""
        return Reply({"missing": self.regions.missing(region_keys(body), self)})

    async def ring(self, _body: Body, _fds: list[int]) -> Reply:
        """The connection's shared ring, made at the first ask."""
        if self._ring is None:
            self._ring = Ring(self.ring_bytes)
        return Reply({"size_bytes": self._ring.size_bytes, "slot_bytes": REGION_BYTES}, [self._ring.fd])

    async def put_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Takes regions out of ring slots; the slots may be reused after the reply."""
        if self._ring is None:
            raise PreconditionFailed("NO_RING", "regions were announced before the ring was asked for")
        self._session()
        ring = self._ring
        items = fields.rows(body, "regions", bytes, int, int)
        await asyncio.gather(
            *(self.regions.put((region_id, length), ring.view(slot, length), self) for region_id, length, slot in items)
        )
        return Reply({})

    async def put_units(self, body: Body, _fds: list[int]) -> Reply:
        """Hands units on to the store."""
        self._session()
        await self.store.put_units([(unit_hash, data) for unit_hash, data in fields.rows(body, "units", bytes, bytes)])
        return Reply({})

    async def commit(self, body: Body, _fds: list[int]) -> Reply:
        """Makes a manifest the session's newest version; *staged* when it returns."""
        session_id = self._session()
        manifest = fields.data(body, "manifest")
        parent, epoch = fields.integer(body, "parent"), fields.integer(body, "epoch")
        execution_id = fields.text(body, "execution_id")
        decoded = decode_manifest(manifest)
        if decoded.session_id != session_id:
            raise InvalidArgument("MANIFEST_FOREIGN", "a manifest names another session than its connection's")
        version, durable = await self.store.commit(
            session_id=session_id,
            epoch=epoch,
            parent=parent,
            execution_id=execution_id,
            manifest=manifest,
            host_id=self.host_id,
        )
        keys = [(ref.region_id, ref.length_bytes) for ref in decoded.region_refs()]
        self.regions.committed(keys)
        self.owner.committed_version = Version(version)
        if durable:
            self.regions.made_durable(keys)
        else:
            self.on_commit(session_id, Version(version), manifest)
        return Reply({"version": version, "durable": durable})

    async def manifest(self, body: Body, _fds: list[int]) -> Reply:
        """One manifest of the session and the session's head."""
        answer = await self.store.manifest(
            self._session(),
            version=fields.integer(body, "version", 0),
            known_version=fields.integer(body, "known_version", 0),
        )
        return Reply(
            {
                "version": answer.version,
                "head": answer.head.version,
                "epoch": answer.head.epoch,
                "durable_version": answer.head.durable_version,
                "manifest": answer.manifest or None,
            }
        )

    async def fetch_units(self, body: Body, _fds: list[int]) -> Reply:
        """Units by hash, as many as fit a frame; the peer asks again for the rest."""
        self._session()
        hashes = fields.sequence(body, "hashes")
        if not all(isinstance(value, bytes) for value in hashes):
            raise InvalidArgument("FIELD_MALFORMED", "unit hashes are bytes")
        units: list[list[bytes]] = []
        size = 0
        for unit_hash, data in (await self.store.get_units(hashes)).items():
            size += len(data)
            if units and size > UNITS_REPLY_BYTES_MAX:
                break
            units.append([unit_hash, data])
        return Reply({"units": units})

    async def map_regions(self, body: Body, _fds: list[int]) -> Reply:
        """Where regions lie, with a descriptor of each segment that this connection has not got yet."""
        self._session()
        slots = await self.regions.ensure(region_keys(body), self)
        new = [
            segment for segment in dict.fromkeys(slot.segment for slot in slots) if segment not in self._segments_sent
        ]
        self._segments_sent.update(new)
        places = [[slot.segment, slot.index * REGION_BYTES] for slot in slots]
        return Reply({"segments": new, "places": places}, [self.regions.arena.readonly_fd(segment) for segment in new])

    async def unmap_regions(self, body: Body, _fds: list[int]) -> Reply:
        """The peer no longer maps these regions."""
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
