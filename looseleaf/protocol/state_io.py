"""Session state over a link: the `StateIO` of kernels and workers (docs/protocol.md: State requests)."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from looseleaf.checkpoint.manifest import RegionList
from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.dirty_tracker import MappedRegions, copy_into, map_many
from looseleaf.errors import Corrupt, InvalidArgument, LooseLeafError
from looseleaf.ids import Epoch, ExecutionId, Version
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message, close_fds
from looseleaf.protocol.region_rows import ID_BYTES, pack_regions, unpack_places
from looseleaf.protocol.threaded import PendingReply, ThreadedLink
from looseleaf.units import MIB, REGION_BYTES

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import RegionRef

_log = logging.getLogger(__name__)

UNITS_FRAME_BYTES_MAX: Final = 16 * MIB
# Regions of one put: small, so that the daemon copies the first ones while the next are still written.
PUT_REGIONS_MAX: Final = 16
# Regions named in one message, so that a frame stays far below its limit.
REGIONS_PER_MESSAGE_MAX: Final = 65_536
HASHES_PER_MESSAGE_MAX: Final = 65_536
# A restore may fetch gigabytes from another host first; anything longer is a lost daemon.
STATE_TIMEOUT_S: Final = 600.0


class _Ring:
    """This connection's shared memory, in slots of one region each."""

    def __init__(self, fd: int, size_bytes: int, slot_bytes: int) -> None:
        if slot_bytes != REGION_BYTES or size_bytes < slot_bytes or os.fstat(fd).st_size < size_bytes:
            raise InvalidArgument("RING_MALFORMED", f"a ring of {size_bytes} bytes in slots of {slot_bytes} is no use")
        self.slot_count = size_bytes // slot_bytes
        self._memory = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def fill(self, slot: int, data: memoryview) -> None:
        copy_into(self._memory, slot * REGION_BYTES, data, 0, data.nbytes)

    def close(self) -> None:
        self._memory.close()


class LinkStateIO:
    """`StateIO` by requests to the host's daemon. Thread-safe; one put of regions at a time.

    Every reply is checked; a daemon that answers nonsense raises InvalidArgument, never a wrong state. One that answers
    nothing for `timeout_s` raises Timeout `REQUEST_TIMEOUT`.
    """

    def __init__(self, link: ThreadedLink, timeout_s: float = STATE_TIMEOUT_S) -> None:
        self._link = link
        self.timeout_s = timeout_s
        self._ring_lock = threading.Lock()
        self._segments_lock = threading.Lock()
        self._ring: _Ring | None = None
        self._segments: dict[int, int] = {}
        # Parts of the ring that the daemon may still read.
        self._under_way: deque[PendingReply] = deque()
        # The newest version that is known to survive this host.
        self.durable_version = 0

    def have_regions(self, refs: Sequence[RegionRef], session_bytes: int = 0) -> list[int]:
        """Indices of the regions that the host arena lacks, ascending; a region named twice is reported once."""
        first: dict[bytes, int] = {}
        for index, ref in enumerate(refs):
            first.setdefault(bytes(ref.region_id), index)
        distinct = list(first.values())
        missing: list[int] = []
        for start in range(0, len(distinct), REGIONS_PER_MESSAGE_MAX):
            part = distinct[start : start + REGIONS_PER_MESSAGE_MAX]
            rows = [_row(refs[index]) for index in part]
            body = {"regions": rows, "continues": start > 0, "session_bytes": session_bytes}
            reply = self._ask("have_regions", body)
            for number in fields.integers(reply, "missing"):
                if number >= len(part):
                    raise _malformed(f"'have_regions' names region {number} of {len(part)}")
                missing.append(part[number])
        return sorted(missing)

    def put_regions(self, items: Iterable[tuple[RegionRef, memoryview]]) -> None:
        """Puts the bytes of each region into the host arena; a region named twice moves once.

        While the daemon copies one part of the ring the next is filled. Raises CapacityExceeded `ARENA_FULL`.
        """
        with self._ring_lock:
            ring = self._open_ring()
            self._settle()
            self._put_batches(ring, items)
            while self._under_way:
                self._finish_first()

    def _put_batches(self, ring: _Ring, items: Iterable[tuple[RegionRef, memoryview]]) -> None:
        under_way = self._under_way
        batch_slots = max(1, min(ring.slot_count // 2, PUT_REGIONS_MAX))
        batches_max = ring.slot_count // batch_slots
        batch = 0
        rows: list[list[Any]] = []
        seen: set[bytes] = set()
        for ref, data in items:
            if bytes(ref.region_id) in seen:
                continue
            seen.add(bytes(ref.region_id))
            if not rows and len(under_way) == batches_max:
                self._finish_first()
            slot = (batch % batches_max) * batch_slots + len(rows)
            ring.fill(slot, _checked_bytes(ref, data))
            rows.append([*_row(ref), slot])
            if len(rows) == batch_slots:
                under_way.append(self._link.begin("put_regions", {"regions": rows}))
                rows, batch = [], batch + 1
        if rows:
            under_way.append(self._link.begin("put_regions", {"regions": rows}))

    def put_units(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Puts units (hash, bytes) into the store by way of the daemon, in frames of at most 16 MiB."""
        batch: list[list[bytes]] = []
        size = 0
        for unit_hash, data in items:
            if batch and size + len(data) > UNITS_FRAME_BYTES_MAX:
                self._ask("put_units", {"units": batch})
                batch, size = [], 0
            batch.append([bytes(unit_hash), bytes(data)])
            size += len(data)
        if batch:
            self._ask("put_units", {"units": batch})

    def commit(self, manifest_bytes: bytes, parent: Version, epoch: Epoch, execution_id: ExecutionId) -> Version:
        """The version that the manifest became. Raises Conflict `MANIFEST_MOVED`, PreconditionFailed `STALE_EPOCH`."""
        body = {"manifest": bytes(manifest_bytes), "parent": parent, "epoch": epoch, "execution_id": execution_id}
        reply = self._ask("commit", body)
        version = fields.integer(reply, "version", minimum=1)
        if fields.boolean(reply, "durable", False):
            self.durable_version = version
        return Version(version)

    def manifest(self, version: int = 0, known_version: int = 0) -> tuple[Message, bytes | None]:
        """({version, epoch, durable_version}, manifest bytes); version 0 asks for the head, and the bytes are None if
        that is `known_version` or nothing was saved yet."""
        reply = self._ask("manifest", {"version": version, "known_version": known_version})
        head = {key: fields.integer(reply, key) for key in ("version", "epoch", "durable_version")}
        self.durable_version = head["durable_version"]
        return head, None if reply.get("manifest") is None else fields.data(reply, "manifest")

    def versions(self, limit: int = 0) -> list[ListedVersion]:
        """The kept versions, newest first, at most `limit` of them; 0: as many as the store lists at once."""
        reply = self._ask("list_versions", {"limit": limit})
        return [ListedVersion(*row) for row in fields.rows(reply, "versions", int, int, int, bool, int, int, str, int)]

    def fetch_units(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Bytes by hash, of all of `hashes`. Raises NotFound (from the store) or Corrupt `UNIT_MISSING`."""
        wanted = dict.fromkeys(bytes(unit_hash) for unit_hash in hashes)
        found: dict[bytes, bytes] = {}
        while len(found) < len(wanted):
            asked = [unit_hash for unit_hash in wanted if unit_hash not in found][:HASHES_PER_MESSAGE_MAX]
            reply = self._ask("fetch_units", {"hashes": asked})
            new = {h: data for h, data in fields.rows(reply, "units", bytes, bytes) if h in wanted and h not in found}
            if not new:
                raise Corrupt("UNIT_MISSING", f"{len(asked)} saved objects could not be read; the saved version stands")
            found.update(new)
        return found

    def map_regions(self, refs: Sequence[RegionRef]) -> MappedRegions:
        """The regions one after another as private writable memory; the file pages are shared until written."""
        return self.map_many([refs])[0]

    def map_many(self, groups: Sequence[Sequence[RegionRef]]) -> list[MappedRegions]:
        """As `map_regions` for each group; all places come in as few replies as they fit."""
        rows = [row for refs in groups for row in _rows(refs)]
        with self._segments_lock:
            return map_many(self._places_of(rows), [len(refs) for refs in groups])

    def _places_of(self, rows: Sequence[tuple[bytes, int]]) -> list[tuple[int, int, int]]:
        """(fd, offset, length) of each region; the caller holds the segments' lock until they are mapped."""
        parts: list[tuple[int, int, int]] = []
        for start in range(0, len(rows), REGIONS_PER_MESSAGE_MAX):
            part = rows[start : start + REGIONS_PER_MESSAGE_MAX]
            reply, fds = self._link.request("map_regions", pack_regions(part), timeout_s=self.timeout_s)
            self._keep_segments(reply, fds)
            places = unpack_places(reply)
            if len(places) != len(part):
                raise _malformed(f"'map_regions' places {len(places)} of {len(part)} regions")
            for (_, length_bytes), (segment, offset) in zip(part, places, strict=True):
                if segment not in self._segments:
                    raise _malformed(f"'map_regions' names segment {segment}, which was never sent")
                parts.append((self._segments[segment], offset, length_bytes))
        return parts

    def unmap_regions(self, refs: Sequence[RegionRef]) -> None:
        """Tells the daemon of one mapping less of each; with its last one gone a region's slot may be reused."""
        for start in range(0, len(refs), REGIONS_PER_MESSAGE_MAX):
            part = refs[start : start + REGIONS_PER_MESSAGE_MAX]
            self._ask("unmap_regions", {"regions": [_row(ref) for ref in part]})

    def close(self) -> None:
        """Closes the ring and the segments; mappings that were handed out stay valid."""
        with self._segments_lock:
            close_fds(self._segments.values())
            self._segments.clear()
        with self._ring_lock:
            if self._ring is not None:
                self._ring.close()
                self._ring = None

    def _keep_segments(self, reply: Message, fds: list[int]) -> None:
        try:
            numbers = fields.integers(reply, "segments")
            if len(numbers) != len(fds) or len(set(numbers)) != len(numbers):
                raise _malformed(f"'map_regions' names {len(numbers)} segments with {len(fds)} fds")
        except InvalidArgument:
            close_fds(fds)
            raise
        for number, fd in zip(numbers, fds, strict=True):
            close_fds([self._segments[number]] if number in self._segments else [])
            self._segments[number] = fd

    def _open_ring(self) -> _Ring:
        if self._ring is None:
            reply, fds = self._link.request("ring", {}, timeout_s=self.timeout_s)
            try:
                if len(fds) != 1:
                    raise InvalidArgument("RING_MALFORMED", f"'ring' came with {len(fds)} fds, not one")
                self._ring = _Ring(fds[0], fields.integer(reply, "size_bytes"), fields.integer(reply, "slot_bytes"))
            finally:
                close_fds(fds)
        return self._ring

    def _ask(self, type_: str, body: Message) -> Message:
        reply, fds = self._link.request(type_, body, timeout_s=self.timeout_s)
        close_fds(fds)
        return reply

    def _finish_first(self) -> None:
        """Waits for the oldest part; it stays under way if the wait is broken off."""
        try:
            _, fds = self._under_way[0].result(self.timeout_s)
        except LooseLeafError:
            self._under_way.popleft()
            raise
        self._under_way.popleft()
        close_fds(fds)

    def _settle(self) -> None:
        """Waits for the parts of a put that failed or was broken off: not then, somebody else may be in a hurry."""
        while self._under_way:
            try:
                self._finish_first()
            except LooseLeafError as error:
                _log.warning("put_regions_abandoned reason=%s", error.reason)


def _malformed(text: str) -> InvalidArgument:
    return InvalidArgument("REPLY_MALFORMED", f"the daemon's answer makes no sense: {text}")


def _rows(refs: Sequence[RegionRef]) -> Sequence[tuple[bytes, int]]:
    return refs.rows() if isinstance(refs, RegionList) else [(bytes(ref.region_id), ref.length_bytes) for ref in refs]


def _row(ref: RegionRef) -> list[Any]:
    return [bytes(ref.region_id), ref.length_bytes]


def _checked_bytes(ref: RegionRef, data: memoryview) -> memoryview:
    view = memoryview(data).cast("B")
    assert len(ref.region_id) == ID_BYTES
    if view.nbytes != ref.length_bytes or not 0 < view.nbytes <= REGION_BYTES:
        raise InvalidArgument("REGION_MALFORMED", f"a region of {ref.length_bytes} bytes came with {view.nbytes} bytes")
    return view
