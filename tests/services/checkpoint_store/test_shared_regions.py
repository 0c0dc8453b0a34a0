"""Regions taken out of a host arena: real memory files, and once a store in a process of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from looseleaf.dirty_tracker import Memfd, hash128
from looseleaf.errors import (
    CapacityExceeded,
    Corrupt,
    InvalidArgument,
    LooseLeafError,
    PreconditionFailed,
    Unavailable,
)
from looseleaf.ids import HostId
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.checkpoint_store.metrics import StoreMetrics
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.shared_regions import CALLS_MAX, REGIONS_MAX, SharedRegionServicer
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.usage import blocks_of
from looseleaf.services.worker_daemon import region_uploads
from looseleaf.services.worker_daemon.arena import SEGMENT_BYTES_MIN, HostArena
from looseleaf.services.worker_daemon.region_uploads import RegionUploads
from looseleaf.services.worker_daemon.regions import HostRegions
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import shared_regions_pb2 as pb
from looseleaf.v1.shared_regions_pb2_grpc import SharedRegionServiceStub

from .conftest import Server

TEXTS = (b"first", b"second", b"x" * 5000)


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@pytest.fixture
def arena() -> Iterator[Memfd]:
    """A memory file as a host arena has it, with TEXTS in its first slots."""
    with Memfd.create("looseleaf-arena-7", 4 * REGION_BYTES) as memory:
        for index, text in enumerate(TEXTS):
            memory.buffer[index * REGION_BYTES : index * REGION_BYTES + len(text)] = text
        yield memory


def request_for(memory: Memfd, **changes: Any) -> pb.TakeRegionsRequest:
    regions = [
        pb.SharedRegion(
            region=cp.RegionRef(region_id=hash128(text), length_bytes=len(text)), offset_bytes=index * REGION_BYTES
        )
        for index, text in enumerate(TEXTS)
    ]
    segment = pb.MemorySegment(fd=memory.fd, inode=os.fstat(memory.fd).st_ino)
    made = {"pid": os.getpid(), "segments": [segment], "regions": regions, **changes}
    return pb.TakeRegionsRequest(**made)


async def test_taken_regions_are_on_the_disk_once(store: Store, arena: Memfd) -> None:
    servicer = SharedRegionServicer(store, at_once)
    assert [(await servicer.TakeRegions(request_for(arena), None)).stored for _ in range(2)] == [3, 0]
    assert store.regions.get([Region(hash128(text), len(text)) for text in TEXTS]) == list(TEXTS)


async def test_region_that_changed_or_is_cut_off_is_refused_and_leaves_nothing(store: Store, arena: Memfd) -> None:
    servicer = SharedRegionServicer(store, at_once)
    request = request_for(arena)
    request.regions[2].offset_bytes = 4 * REGION_BYTES - 100
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await servicer.TakeRegions(request, None)
    arena.buffer[REGION_BYTES] = ord("S")
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await servicer.TakeRegions(request_for(arena), None)
    assert store.usage.used_bytes == 0


async def test_memory_that_is_no_arena_of_this_machine_is_not_read(store: Store, arena: Memfd, tmp_path: Path) -> None:
    servicer = SharedRegionServicer(store, at_once)
    inode = os.fstat(arena.fd).st_ino
    with tempfile.TemporaryFile(dir=tmp_path) as file, Memfd.create("somebody-elses", 100) as other:
        refused: list[dict[str, Any]] = [
            {"pid": 1 << 22},
            {"segments": [pb.MemorySegment(fd=arena.fd, inode=inode + 1)]},
            {"segments": [pb.MemorySegment(fd=1 << 20, inode=inode)]},
            *(
                {"segments": [pb.MemorySegment(fd=fd, inode=os.fstat(fd).st_ino)]}
                for fd in (file.fileno(), other.fd)
            ),
        ]
        for changes in refused:
            with pytest.raises(PreconditionFailed, match="MEMORY_NOT_SHARED"):
                await servicer.TakeRegions(request_for(arena, **changes), None)


async def test_request_that_names_too_much_or_an_unknown_segment_is_refused(store: Store, arena: Memfd) -> None:
    servicer = SharedRegionServicer(store, at_once)
    request = request_for(arena)
    request.regions[0].segment = 1
    with pytest.raises(InvalidArgument, match="SEGMENT_UNKNOWN"):
        await servicer.TakeRegions(request, None)
    for changes in ({"segments": [pb.MemorySegment()] * 65}, {"regions": [pb.SharedRegion()] * (REGIONS_MAX + 1)}):
        with pytest.raises(InvalidArgument, match="TOO_MANY_NAMED"):
            await servicer.TakeRegions(request_for(arena, **changes), None)
    assert store.usage.used_bytes == 0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EACCES, errno.ESRCH])
async def test_error_of_the_store_is_not_mistaken_for_memory_that_is_not_shared(
    store: Store, arena: Memfd, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_args: Any, **_named: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("looseleaf.services.checkpoint_store.shared_regions.os.readlink", fail)
    refused = number in (errno.EACCES, errno.ESRCH)
    with pytest.raises(PreconditionFailed if refused else Unavailable) as caught:
        await SharedRegionServicer(store, at_once).TakeRegions(request_for(arena), None)
    assert caught.value.reason == ("MEMORY_NOT_SHARED" if refused else "STORE_IO")
    assert store.usage.used_bytes == 0


async def test_takes_beyond_those_that_run_and_wait_are_refused(store: Store, arena: Memfd) -> None:
    go_on = asyncio.Event()

    async def later(function: Callable[..., Any], *args: Any) -> Any:
        await go_on.wait()
        return function(*args)

    servicer = SharedRegionServicer(store, later, 1)
    registry = CollectorRegistry()
    StoreMetrics(registry, store).follow(takes=servicer.takes)
    takes = [asyncio.create_task(servicer.TakeRegions(request_for(arena), None)) for _ in range(CALLS_MAX + 1)]
    await asyncio.sleep(0)
    assert registry.get_sample_value("looseleaf_store_streams_waiting", {"kind": "takes"}) == 1
    with pytest.raises(CapacityExceeded, match="STORE_BUSY"):
        await servicer.TakeRegions(request_for(arena), None)
    go_on.set()
    assert sum(taken.stored for taken in await asyncio.gather(*takes)) == 3


async def test_room_is_made_for_the_blocks_that_the_regions_take(
    store: Store, arena: Memfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    reserve = store.usage.reserve

    def counted(tenant: bytes, size_bytes: int, *, later: bool = False) -> None:
        asked.append(size_bytes)
        reserve(tenant, size_bytes, later=later)

    monkeypatch.setattr(store.usage, "reserve", counted)
    await SharedRegionServicer(store, at_once).TakeRegions(request_for(arena), None)
    assert [size_bytes for size_bytes in asked if size_bytes] == [sum(blocks_of(len(text)) for text in TEXTS)]


async def test_arena_is_uploaded_without_a_stream_also_after_the_store_was_killed(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_uploads, "TAKE_REGIONS_MAX", 2)
    server = make_server()
    arena = HostArena(SEGMENT_BYTES_MIN)
    locator: Any = None
    with ThreadPoolExecutor(1) as executor:
        regions = HostRegions(arena, locator, HostId("h0"), executor)
        keys = []
        for number in range(7):
            data = b"%d" % number * 3000
            keys.append((hash128(data), len(data)))
            await regions.put(keys[-1], memoryview(data), "version")
        async with open_channel(server.address, peer="store") as channel:
            await channel.wait_ready(20)
            client = StoreClient(channel, restart_patience_s=20)

            async def streamed(*_args: Any) -> int:
                raise AssertionError("the bytes went through a stream")

            monkeypatch.setattr(client, "put_regions", streamed)
            uploads = RegionUploads(client, SharedRegionServiceStub(channel), regions)
            await uploads.put(keys[:3])
            server.kill()
            with pytest.raises(Unavailable):
                await uploads.put(keys)
            server.start()
            await channel.wait_ready(20)
            await uploads.put([*keys, (b"n" * 16, 5)])
            assert all(place.durable for place in await client.locate(keys))
        assert all(len(regions.table.pinned(owner)) == 7 for owner in ["version"])
    arena.close()


def test_errors_of_the_disk_are_the_stores(store: Store, arena: Memfd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is not mistaken for memory that cannot be shared."""
    def fail(*_args: Any) -> None:
        raise Unavailable("STORE_IO", "planted")

    monkeypatch.setattr(store.files, "write", fail)
    with pytest.raises(LooseLeafError, match="STORE_IO"):
        SharedRegionServicer(store, at_once)._take(request_for(arena))
