"""What the client adds to the calls; the calls themselves are tested with the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import CapacityExceeded, Unavailable
from looseleaf.rpc import store_client
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.rpc.store_client import NAMED_PER_CALL_MAX, StoreClient
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import checkpoint_store_pb2 as pb
from looseleaf.v1.checkpoint_store_pb2_grpc import (
    CheckpointStoreServiceServicer,
    add_CheckpointStoreServiceServicer_to_server,
)


class Store(CheckpointStoreServiceServicer):
    """Answers what the client asks in parts, and fails as often as told."""

    def __init__(self) -> None:
        self.request_ids: list[str] = []
        self.counts: list[int] = []
        self.failures = 0
        self.error: Exception = Unavailable("STORE_CLOSED", "stopping")

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionResponse:
        self.request_ids.append(request.request_id)
        if self.failures:
            self.failures -= 1
            raise Unavailable("KV_IO", "the disk failed")
        return pb.OpenSessionResponse(head=cp.SessionHead(session_id=request.session_id, epoch=3))

    async def LocateRegions(self, request: pb.LocateRegionsRequest, context: Any) -> pb.LocateRegionsResponse:
        self.counts.append(len(request.regions))
        return pb.LocateRegionsResponse(locations=[cp.RegionLocation(region=region) for region in request.regions])

    async def GetRegions(self, request: pb.GetRegionsRequest, context: Any) -> AsyncIterator[pb.GetRegionsResponse]:
        self.counts.append(len(request.regions))
        for number, region in enumerate(request.regions):
            if self.failures and number == 2:
                self.failures -= 1
                raise self.error
            yield pb.GetRegionsResponse(chunk=cp.RegionChunk(region=region, data=region.region_id))


async def serve(tmp_path: Path, store: Store) -> RpcServer:
    server = RpcServer(f"unix:{tmp_path}/s.sock")
    server.bind()
    await server.start([Registration(add_CheckpointStoreServiceServicer_to_server, store)])
    return server


async def test_repeats_of_a_change_carry_one_request_id(tmp_path: Path) -> None:
    store = Store()
    server = await serve(tmp_path, store)
    store.failures = 4  # all the attempts of the channel
    async with open_channel(server.address, peer="store") as channel:
        head = await StoreClient(channel).open_session("s1")
    await server.stop(0)
    assert head.epoch == 3
    assert len(store.request_ids) == 5
    assert len(set(store.request_ids)) == 1


async def test_impatient_client_gives_up_with_the_last_error(tmp_path: Path) -> None:
    async with open_channel(f"unix:{tmp_path}/none.sock", peer="store") as channel:
        with pytest.raises(Unavailable, match="STORE_DOWN"):
            await StoreClient(channel, restart_patience_s=0).open_session("s1")


async def test_many_regions_are_located_in_parts_and_in_order(tmp_path: Path) -> None:
    store = Store()
    server = await serve(tmp_path, store)
    keys = [(number.to_bytes(16, "big"), 1) for number in range(NAMED_PER_CALL_MAX + 3)]
    async with open_channel(server.address, peer="store") as channel:
        found = await StoreClient(channel).locate(keys)
        assert await StoreClient(channel).locate([]) == []
    await server.stop(0)
    assert [item.region.region_id for item in found] == [region_id for region_id, _ in keys]
    assert store.counts == [NAMED_PER_CALL_MAX, 3]


async def test_read_of_regions_goes_on_where_a_restart_cut_it_off(tmp_path: Path) -> None:
    store = Store()
    store.failures = 2
    server = await serve(tmp_path, store)
    keys = [(bytes([number]) * 16, 1) for number in range(6)]
    async with open_channel(server.address, peer="store") as channel:
        found = [(rid, length) async for rid, length, _ in StoreClient(channel).get_regions(keys)]
        store.failures = 1
        with pytest.raises(Unavailable, match="STORE_CLOSED"):
            [item async for item in StoreClient(channel, restart_patience_s=0).get_regions(keys)]
    await server.stop(0)
    assert found == keys
    assert store.counts == [6, 4, 2, 6]


async def test_read_of_regions_waits_for_a_busy_store_and_not_for_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "RESTART_RETRY_S", 0.0)
    store = Store()
    server = await serve(tmp_path, store)
    keys = [(bytes([number]) * 16, 1) for number in range(4)]
    async with open_channel(server.address, peer="store") as channel:
        store.error, store.failures = CapacityExceeded("STORE_BUSY", "later"), 1
        assert [(rid, length) async for rid, length, _ in StoreClient(channel).get_regions(keys)] == keys
        store.error, store.failures = CapacityExceeded("STORE_FULL", "full"), 1
        with pytest.raises(CapacityExceeded, match="STORE_FULL"):
            [item async for item in StoreClient(channel).get_regions(keys)]
    await server.stop(0)


async def test_stream_begun_on_a_channel_that_closes_ends_with_an_error_of_ours(tmp_path: Path) -> None:
    channel = open_channel(f"unix:{tmp_path}/none.sock", peer="store")
    client = StoreClient(channel, restart_patience_s=0)
    putting = asyncio.ensure_future(client.put_units([(bytes(16), b"x")]))
    await asyncio.sleep(0)
    await channel.close()
    with pytest.raises(Unavailable, match="STORE_DOWN"):
        await asyncio.wait_for(putting, 10)
