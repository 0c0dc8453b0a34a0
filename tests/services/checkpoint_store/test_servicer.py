"""Every call against a real server on a Unix socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from looseleaf.clock import ManualClock
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import (
    CapacityExceeded,
    Conflict,
    Corrupt,
    Forbidden,
    InvalidArgument,
    LooseLeafError,
    NotFound,
    PreconditionFailed,
)
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.rpc.store_client import RegionKey, StoreClient
from looseleaf.services.checkpoint_store.metrics import StoreMetrics
from looseleaf.services.checkpoint_store.regions import Region
from looseleaf.services.checkpoint_store.servicer import (
    COLLECTED_FOR_ROOM_S,
    REGION_STREAMS_MAX,
    UNIT_STREAMS_MAX,
    CheckpointStoreServicer,
)
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.units import MIB, REGION_BYTES
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import checkpoint_store_pb2 as pb
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

from .conftest import Server, State, make_state, region_chunks

MakeServer = Callable[..., Server]


async def save(client: StoreClient, state: State, parent: int, execution_id: str, session_id: str = "s1") -> int:
    head = await client.open_session(session_id, create=True)
    await client.put_units(state.unit_pairs())
    version, _ = await client.commit(
        session_id, epoch=head.epoch, parent=parent, execution_id=execution_id, host_id="h1",
        manifest=state.manifest(session_id, parent, head.epoch, execution_id),
    )  # fmt: skip
    return version


def region_keys(state: State) -> list[RegionKey]:
    return [key for key, _ in state.region_chunks()]


async def test_session_grows_from_open_to_durable_and_lists_its_versions(client: StoreClient) -> None:
    head = await client.open_session("s1", create=True, raise_epoch=True, title="a.ipynb")
    assert (head.epoch, head.version, head.title) == (1, 0, "a.ipynb")
    assert (await client.manifest("s1")).version == 0
    state = make_state(units=["a", "b"], regions=["a", "b"])
    assert await save(client, state, 0, "x1") == 1
    durable, missing = await client.mark_durable("s1", 1)
    assert (durable, sorted(missing)) == (False, sorted(region_keys(state)))
    assert await client.put_regions(region_chunks(state.region_chunks())) == 2
    assert await client.mark_durable("s1", 1) == (True, [])
    found = await client.manifest("s1")
    assert found.head.durable_version == found.version == 1
    assert found.manifest == state.manifest("s1", 0, 1, "x1")
    assert (await client.manifest("s1", known_version=1)).manifest == b""
    versions = await client.list_versions("s1")
    assert [(v.version, v.parent, v.execution_id, v.durable, v.roots) for v in versions] == [(1, 0, "x1", True, 2)]
    assert versions[0].logical_bytes == sum(map(len, [*state.units.values(), *state.regions.values()]))
    located = await client.locate([*region_keys(state), (bytes(16), 1)])
    assert [(list(item.host_ids), item.durable) for item in located] == [(["h1"], True), (["h1"], True), ([], False)]


async def test_sessions_are_listed_newest_first_and_deleted(client: StoreClient) -> None:
    for session_id in ("s1", "s2", "s3"):
        await save(client, make_state(units=[session_id]), 0, "x1", session_id)
    await save(client, make_state(), 1, "x2", "s2")
    assert [head.session_id for head in await client.list_sessions(2)] == ["s2", "s3"]
    await client.delete_session("s2")
    assert sorted(head.session_id for head in await client.list_sessions()) == ["s1", "s3"]
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        await client.manifest("s2")
    with pytest.raises(NotFound, match="SESSION_UNKNOWN"):
        await client.list_versions("s2")


async def test_units_of_a_long_stream_come_back_whole(client: StoreClient) -> None:
    units = [data for number in range(1500) if (data := str(number).encode() * (1 + number % 7))]
    units += [os.urandom(MIB - 1) for _ in range(6)]
    pairs = [(hash128(data), data) for data in units]
    assert await client.put_units(pairs) == len(dict(pairs))
    assert await client.put_units(pairs) == 0
    assert await client.get_units([unit_hash for unit_hash, _ in pairs]) == dict(pairs)
    with pytest.raises(NotFound, match="UNITS_UNKNOWN"):
        await client.get_units([bytes(16)])
    with pytest.raises(InvalidArgument, match="UNIT_TOO_LARGE"):
        await client.put_units([(hash128(bytes(MIB)), bytes(MIB))])
    with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH"):
        await client.put_units([(bytes(16), b"x")])
    with pytest.raises(InvalidArgument, match="HASH_MALFORMED"):
        await client.put_units([(b"short", b"x")])


async def test_full_regions_travel_both_ways(client: StoreClient) -> None:
    regions = {(hash128(data), len(data)): data for data in (os.urandom(REGION_BYTES) for _ in range(9))}
    assert await client.put_regions(region_chunks(regions)) == 9
    found = {(rid, length): data async for rid, length, data in client.get_regions(list(regions))}
    assert found == regions
    with pytest.raises(NotFound, match="REGIONS_UNKNOWN"):
        [item async for item in client.get_regions([(bytes(16), 1)])]


async def test_two_savers_on_one_parent_one_is_aborted(client: StoreClient) -> None:
    outcomes = await asyncio.gather(
        *(save(client, make_state(units=[name]), 0, f"x-{name}") for name in "abcd"), return_exceptions=True
    )
    assert outcomes.count(1) == 1
    refused = [item for item in outcomes if isinstance(item, Conflict)]
    assert [error.reason for error in refused] == ["MANIFEST_MOVED"] * 3


async def test_raised_epoch_fences_the_old_owner(client: StoreClient) -> None:
    state = make_state(units=["a"])
    await save(client, state, 0, "x1")
    head = await client.open_session("s1", raise_epoch=True)
    with pytest.raises(PreconditionFailed, match="STALE_EPOCH") as caught:
        await client.commit(
            "s1", epoch=head.epoch - 1, parent=1, execution_id="x2", host_id="h1",
            manifest=state.manifest("s1", 1, head.epoch - 1, "x2"),
        )  # fmt: skip
    assert caught.value.fields["epoch"] == head.epoch


async def test_damaged_byte_on_the_disk_is_a_typed_error(make_server: MakeServer) -> None:
    server = make_server()
    state = make_state(regions=["a"])
    async with server.client() as client:
        await client.put_regions(region_chunks(state.region_chunks()))
        (path,) = (server.data / "regions").iterdir()
        with path.open("r+b") as file:
            file.write(b"!")
        with pytest.raises(Corrupt, match="CHECKSUM_MISMATCH") as caught:
            [item async for item in client.get_regions(region_keys(state))]
        assert caught.value.fields["region"] == region_keys(state)[0][0].hex()


async def test_session_deleted_while_its_regions_are_read_gives_right_bytes_or_a_typed_error(
    make_server: MakeServer,
) -> None:
    async with make_server(orphan_grace_s=0).client() as client:
        regions = {(hash128(data), len(data)): data for data in (os.urandom(MIB) for _ in range(24))}
        state = State({}, {str(number): data for number, data in enumerate(regions.values())})
        await client.put_regions(region_chunks(regions))
        await save(client, state, 0, "x1")
        read: list[bytes] = []
        try:
            async for region_id, length, data in client.get_regions(list(regions)):
                assert regions[region_id, length] == data
                read.append(region_id)
                if len(read) == 3:
                    await client.delete_session("s1")
                    freed = await client.collect_garbage()
                    assert freed.regions_deleted == 24
                    others = {(hash128(data), len(data)): data for data in (os.urandom(MIB) for _ in range(24))}
                    await client.put_regions(region_chunks(others))
        except NotFound as error:
            assert error.reason == "REGIONS_UNKNOWN"  # noqa: PT017
        assert len(read) >= 3


async def test_full_store_says_both_numbers_and_lives_on(make_server: MakeServer) -> None:
    async with make_server(stored_bytes_max=MIB).client() as client:
        large = bytes([9]) * REGION_BYTES
        with pytest.raises(CapacityExceeded, match="STORE_FULL") as caught:
            await client.put_regions(region_chunks([((hash128(large), len(large)), large)]))
        assert caught.value.fields["needed_bytes"] == REGION_BYTES
        assert caught.value.fields["available_bytes"] == MIB
        assert await client.put_regions(region_chunks(make_state(regions=["a"]).region_chunks())) == 1
        assert await save(client, make_state(units=["a"]), 0, "x1") == 1


async def test_upload_that_does_not_fit_is_refused_as_a_whole_and_says_what_to_delete(make_server: MakeServer) -> None:
    async with make_server(tenant_bytes_max=3 * REGION_BYTES).client() as client:
        state = State({}, {str(number): bytes([number]) * REGION_BYTES for number in (1, 2)})
        chunks = state.region_chunks()
        await client.put_regions(region_chunks(chunks), 2 * REGION_BYTES)
        await save(client, state, 0, "x1")
        more = [((hash128(data), len(data)), data) for data in (bytes([n]) * REGION_BYTES for n in (3, 4))]
        with pytest.raises(CapacityExceeded, match="TENANT_FULL.*looseleaf session rm.*s1") as caught:
            await client.put_regions(region_chunks(more), 2 * REGION_BYTES)
        fields = caught.value.fields
        assert (fields["needed_bytes"], fields["available_bytes"]) == (2 * REGION_BYTES, REGION_BYTES)
        assert fields["largest_sessions"] == ["s1 (4.0 MiB)"]
        assert not any(item.durable for item in await client.locate([key for key, _ in more]))
        assert await client.put_regions(region_chunks(more[:1]), REGION_BYTES) == 1


async def test_clients_of_two_tenants_share_nothing(make_server: MakeServer) -> None:
    server = make_server()
    state = make_state(units=["a"], regions=["a"])
    async with server.client(tenant="one") as one, server.client(tenant="two") as two:
        await save(one, state, 0, "x1", "s-one")
        await two.open_session("s-two", create=True)
        heads = await one.list_sessions()
        assert {head.session_id: head.tenant for head in heads} == {"s-one": "one", "s-two": "two"}
        with pytest.raises(NotFound, match="UNITS_UNKNOWN"):
            await two.get_units([key for key, _ in state.unit_pairs()])
        assert await one.put_regions(region_chunks(state.region_chunks())) == 1
        assert [item.durable for item in await one.locate(region_keys(state))] == [True]
        assert [item.durable for item in await two.locate(region_keys(state))] == [False]
        with pytest.raises(NotFound, match="REGIONS_UNKNOWN"):
            [item async for item in two.get_regions(region_keys(state))]
        assert await two.put_regions(region_chunks(state.region_chunks())) == 1
        with pytest.raises(Forbidden, match="TENANT_MISMATCH"):
            await two.open_session("s-one", raise_epoch=True)
        assert await two.forget_host_regions("h1", region_keys(state)) == []


async def test_lost_host_names_sessions_and_executions(client: StoreClient) -> None:
    await save(client, make_state(units=["a"]), 0, "x1")
    await save(client, make_state(units=["a"], regions=["a"]), 1, "x2")
    await save(client, make_state(units=["a"], regions=["a", "b"]), 2, "x3")
    (fell,) = await client.forget_host_regions("h1", region_keys(make_state(regions=["b"])))
    assert (fell.session_id, fell.lost_version, fell.version) == ("s1", 3, 2)
    (fell,) = await client.forget_host("h1")
    assert (fell.lost_version, fell.version, list(fell.lost_execution_ids)) == (2, 1, ["x2"])
    assert await client.forget_host("h1") == []


async def test_collector_counts_what_it_freed(make_server: MakeServer) -> None:
    async with make_server(versions_kept_max=2, version_use_s=0, orphan_grace_s=0).client() as client:
        for number in range(4):
            await save(client, make_state(units=[f"{number}"], regions=[f"{number}"]), number, f"x{number}")
        freed = await client.collect_garbage()
        assert (freed.versions_dropped, freed.units_deleted, freed.regions_deleted) == (2, 2, 2)


async def test_save_is_admitted_where_only_a_collection_is_missing(store: Store, clock: ManualClock) -> None:
    async def run_blocking(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    def fill(regions: int) -> None:
        for number in range(1, regions + 1):
            data = bytes([number]) * REGION_BYTES
            upload = store.regions.begin_upload()
            upload.add([(Region(hash128(data), len(data)), data)])
            upload.finish()

    servicer = CheckpointStoreServicer(store, run_blocking, RequestMemory(), StoreMetrics(CollectorRegistry(), store))
    store.sessions.open("s1", create=True, raise_epoch=True, title="")
    wanted = [cp.RegionRef(region_id=bytes([n]) * 16, length_bytes=REGION_BYTES) for n in range(8)]
    request = pb.AdmitSaveRequest(session_id="s1", regions=wanted)
    fill(30)
    with pytest.raises(CapacityExceeded, match="STORE_FULL"):
        await servicer.AdmitSave(request, None)
    # Nothing was due yet.
    clock.advance(61)
    first = store.collector.last
    clock.advance(COLLECTED_FOR_ROOM_S)
    answers = await asyncio.gather(*(servicer.AdmitSave(request, None) for _ in range(3)))
    assert [answer.new_bytes for answer in answers] == [8 * REGION_BYTES] * 3
    assert first != store.collector.last and store.usage.used_bytes == 0
    clock.advance(COLLECTED_FOR_ROOM_S)
    fill(30)
    clock.advance(61)

    async def units() -> AsyncIterator[pb.PutUnitsRequest]:
        for number in range(9):
            data = bytes([number]) * (MIB - 1)
            yield pb.PutUnitsRequest(unit=cp.UnitBlob(unit_hash=hash128(data), data=data))

    assert (await servicer.PutUnits(units(), None)).stored == 9
    last = store.collector.last
    fill(25)
    with pytest.raises(CapacityExceeded, match="STORE_FULL"):
        await servicer.AdmitSave(request, None)
    assert store.collector.last == last, "the last one is not long ago"


async def test_collections_asked_for_together_take_one_thread(store: Store) -> None:
    running = most = 0

    async def run_blocking(function: Callable[[], Any]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return function()

    metrics = StoreMetrics(CollectorRegistry(), store)
    servicer = CheckpointStoreServicer(store, run_blocking, RequestMemory(), metrics)
    await asyncio.gather(*(servicer.collect() for _ in range(5)))
    assert most == 1


@pytest.mark.parametrize(
    ("kind", "read", "running_max"),
    [("unit_reads", lambda servicer: servicer.GetUnits(pb.GetUnitsRequest(), None), UNIT_STREAMS_MAX),
     ("region_reads", lambda servicer: servicer.GetRegions(pb.GetRegionsRequest(), None), REGION_STREAMS_MAX)],
)  # fmt: skip
async def test_reads_that_wait_for_their_turn_are_shown(store: Store, kind: str, read: Any, running_max: int) -> None:
    async def run_blocking(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    registry = CollectorRegistry()
    servicer = CheckpointStoreServicer(store, run_blocking, RequestMemory(), StoreMetrics(registry, store))
    turns = {"unit_reads": servicer._unit_gets, "region_reads": servicer._downloads}[kind]

    def shown() -> float | None:
        return registry.get_sample_value("looseleaf_store_streams_waiting", {"kind": kind})

    async with AsyncExitStack() as held:
        for _ in range(running_max):
            await held.enter_async_context(turns)
        reading = asyncio.create_task(_all(read(servicer)))
        while not turns.waiting:  # noqa: ASYNC110 - the test drives the loop itself
            await asyncio.sleep(0)
        assert shown() == 1
    assert await reading == [] and shown() == 0


async def _all(stream: AsyncIterator[Any]) -> list[Any]:
    return [message async for message in stream]


async def test_upload_that_is_cancelled_while_room_is_made_for_it_gives_the_room_back(store: Store) -> None:
    async def run_blocking(function: Callable[..., Any], *arguments: Any) -> Any:
        done = function(*arguments)
        if function.__name__ == "reserve":
            assert store.usage.used_bytes == MIB
            # The thread ended its work all the same.
            raise asyncio.CancelledError
        return done

    async def requests() -> AsyncIterator[pb.PutRegionsRequest]:
        yield pb.PutRegionsRequest(stream_bytes=MIB)

    metrics = StoreMetrics(CollectorRegistry(), store)
    servicer = CheckpointStoreServicer(store, run_blocking, RequestMemory(), metrics)
    with pytest.raises(asyncio.CancelledError):
        await servicer.PutRegions(requests(), None)
    await servicer.drain()
    assert store.usage.used_bytes == 0


async def test_malformed_requests_are_refused_by_reason(make_server: MakeServer) -> None:
    channel = open_channel(make_server().address, peer="store")
    await channel.wait_ready(20)
    stub: Any = CheckpointStoreServiceStub(channel)
    named = [bytes(16)] * 100_001
    refs = [{"region_id": name, "length_bytes": 1} for name in named]
    cases = [
        (stub.OpenSession, pb.OpenSessionRequest(session_id="s1", create=True), "REQUEST_ID_MISSING"),
        (stub.OpenSession, pb.OpenSessionRequest(request_id="r", session_id="a b", create=True), "ID_MALFORMED"),
        (stub.CommitVersion, pb.CommitVersionRequest(session_id="s1"), "REQUEST_ID_MISSING"),
        (stub.CommitVersion, pb.CommitVersionRequest(request_id="r", session_id="s1", execution_id="x"),
         "MANIFEST_MAGIC"),
        (stub.CommitVersion, pb.CommitVersionRequest(request_id="r", session_id="s1", execution_id="x",
                                                     manifest=bytes(9 * MIB)), "MANIFEST_TOO_LARGE"),
        (stub.MarkDurable, pb.MarkDurableRequest(request_id="r", session_id="s1"), "SESSION_UNKNOWN"),
        (stub.ForgetHostRegions, pb.ForgetHostRegionsRequest(request_id="r", host_id="", all=True), "ID_MALFORMED"),
        (stub.LocateRegions, pb.LocateRegionsRequest(regions=[{"region_id": b"x", "length_bytes": 1}]),
         "HASH_MALFORMED"),
        (stub.LocateRegions, pb.LocateRegionsRequest(regions=refs), "TOO_MANY_NAMED"),
    ]  # fmt: skip
    for method, request, reason in cases:
        with pytest.raises(LooseLeafError, match=reason):
            await method(request, timeout_s=20)
    async with stub.GetUnits(pb.GetUnitsRequest(unit_hashes=named), timeout_s=20) as stream:
        with pytest.raises(InvalidArgument, match="TOO_MANY_NAMED"):
            await stream.read()
    await channel.close()


async def test_cancelled_upload_leaves_nothing_behind(make_server: MakeServer) -> None:
    async with make_server(stored_bytes_max=3 * REGION_BYTES).client() as client:
        regions = [(hash128(data), len(data), data) for data in (os.urandom(REGION_BYTES) for _ in range(2))]
        sent = asyncio.Event()

        async def endless() -> Any:
            for item in regions:
                yield item
            sent.set()
            await asyncio.Event().wait()

        upload = asyncio.ensure_future(client.put_regions(endless()))
        await sent.wait()
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        # Room for three regions: they fit only once the cancelled two were given back.
        others = {(hash128(data), len(data)): data for data in (os.urandom(REGION_BYTES) for _ in range(3))}
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await client.put_regions(region_chunks(others)) == 3
                    break
                except CapacityExceeded:
                    await asyncio.sleep(0.02)
