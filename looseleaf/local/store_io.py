"""A session's state straight on a checkpoint store's folder, without services: for measuring, and to look at a store.

The store is the service's own, opened in this process, so that no service may use the folder meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint.manifest import RegionRef
from looseleaf.dirty_tracker import MappedRegions
from looseleaf.errors import NotFound
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.services.checkpoint_store.core.rows import ZERO_SLOT
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.store import open_store
from looseleaf.units import REGION_BYTES

# Regions that are handed to the disk together.
_REGIONS_PER_WRITE: Final = 32


class StoreIO:
    """`StateIO` of one session over an opened store; every commit is durable. One thread at a time.

    Restored memory is a private mapping of the store's region files: their slots stay pinned until `close`.
    """

    def __init__(self, folder: Path, session_id: SessionId) -> None:
        self._session_id = session_id
        self._store = open_store(folder)
        self._pins = ExitStack()
        self._fds: dict[Path, int] = {}
        # What regions of zeros, which are in no file, are mapped from.
        self._zeros_fd = os.memfd_create("looseleaf-zeros", os.MFD_CLOEXEC)
        os.ftruncate(self._zeros_fd, REGION_BYTES)
        # Of all manifests that were committed.
        self.manifest_bytes = 0
        self._store.sessions.open(session_id, create=True, raise_epoch=False, title="")

    def have_regions(self, refs: Sequence[RegionRef], session_bytes: int = 0) -> list[int]:
        """As `StateIO.have_regions`."""
        rows = self._store.regions.locate([_region(ref) for ref in refs])
        return [index for index, row in enumerate(rows) if row is None or not row.on_disk]

    def put_regions(self, items: Iterable[tuple[RegionRef, memoryview]]) -> None:
        """As `StateIO.put_regions`; raises CapacityExceeded `STORE_FULL` or `DISK_FULL`."""
        upload = self._store.regions.begin_upload()
        chunks: list[tuple[Region, bytes]] = []
        try:
            for ref, data in items:
                chunks.append((_region(ref), bytes(data)))
                if len(chunks) == _REGIONS_PER_WRITE:
                    upload.add(chunks)
                    chunks = []
            upload.add(chunks)
            upload.finish()
        except BaseException:
            upload.abort()
            raise

    def put_units(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """As `StateIO.put_units`."""
        self._store.units.put(list(items))

    def commit(self, manifest_bytes: bytes, parent: Version, epoch: Epoch, execution_id: ExecutionId) -> Version:
        """As `StateIO.commit`."""
        done = self._store.commits.commit(
            self._session_id, epoch=epoch, parent=parent, execution_id=execution_id, manifest=manifest_bytes,
            host_id="",
        )  # fmt: skip
        self.manifest_bytes += len(manifest_bytes)
        return Version(done.version)

    def manifest(self, version: Version) -> tuple[Mapping[str, Any], bytes | None]:
        """As `StateIO.manifest`."""
        found = self._store.sessions.manifest(self._session_id, version, 0)
        session = found.session
        head = {"version": found.version, "epoch": session.epoch, "durable_version": session.durable_version}
        return head, found.manifest or None

    def fetch_units(self, hashes: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """As `StateIO.fetch_units`."""
        return dict(zip(hashes, self._store.units.get(hashes), strict=True))

    def map_regions(self, refs: Sequence[RegionRef]) -> MappedRegions:
        """As `StateIO.map_regions`."""
        rows = self._store.regions.locate([_region(ref) for ref in refs])
        slots = [row.slot for row in rows if row is not None and row.slot is not None and row.on_disk]
        if len(slots) != len(refs):
            raise NotFound("REGION_UNKNOWN", f"{len(refs) - len(slots)} saved regions are not on the store's disk")
        self._pins.enter_context(self._store.files.pinned(slot for slot in slots if slot != ZERO_SLOT))
        return MappedRegions([(*self._place(slot), ref.length_bytes) for slot, ref in zip(slots, refs, strict=True)])

    def map_many(self, groups: Sequence[Sequence[RegionRef]]) -> list[MappedRegions]:
        """As `StateIO.map_many`."""
        return [self.map_regions(refs) for refs in groups]

    def unmap_regions(self, refs: Sequence[RegionRef]) -> None:
        """As `StateIO.unmap_regions`; their slots stay until `close` all the same."""

    def close(self) -> None:
        """Closes the store; memory that was restored stays valid."""
        self._pins.close()
        for fd in (*self._fds.values(), self._zeros_fd):
            os.close(fd)
        self._fds = {}
        self._store.close()

    def _place(self, slot: int) -> tuple[int, int]:
        """(descriptor, offset) of a slot's bytes."""
        if slot == ZERO_SLOT:
            return self._zeros_fd, 0
        path, offset = self._store.files.path_of(slot)
        if path not in self._fds:
            self._fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fds[path], offset


def _region(ref: RegionRef) -> Region:
    return Region(bytes(ref.region_id), ref.length_bytes)
