from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from daemon_fakes import region

from looseleaf.errors import NotFound
from looseleaf.ids import HostId
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.region_sources import PeerSource, StoreLocator, StoreSource
from looseleaf.v1 import checkpoint_pb2 as cp
from looseleaf.v1 import worker_daemon_pb2 as pb

ONE, TWO, THREE = (region(number)[0] for number in (1, 2, 3))
ADDRESSES = {"h0": "unix:/h0", "h1": "unix:/h1", "h2": "unix:/h2"}


class Store:
    """`where`: hosts of each region; `on_disk`: those that the store has itself."""

    def __init__(self, where: dict[RegionKey, list[str]], on_disk: set[RegionKey] = frozenset()) -> None:  # type: ignore[assignment]
        self.where, self.on_disk = where, on_disk

    async def locate(self, keys: list[RegionKey]) -> list[cp.RegionLocation]:
        return [
            cp.RegionLocation(
                region=cp.RegionRef(region_id=key[0], length_bytes=key[1]),
                host_ids=self.where.get(key, []),
                durable=key in self.on_disk,
            )
            for key in keys
        ]

    async def get_regions(self, keys: list[RegionKey]) -> Any:
        for key in keys:
            yield key[0], key[1], b"disk"


class Peer:
    """Another daemon: streams the regions that it is asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[RegionKey] = []

    def FetchRegions(self, request: pb.FetchRegionsRequest, *, timeout_s: float) -> Any:
        self.asked = [(ref.region_id, ref.length_bytes) for ref in request.regions]
        chunks = [pb.FetchRegionsResponse(chunk=cp.RegionChunk(region=ref, data=b"peer")) for ref in request.regions]
        return _Stream(chunks)


class _Stream:
    def __init__(self, items: list[Any]) -> None:
        self._items = items

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._items.clear()

    async def __aiter__(self) -> Any:
        for item in list(self._items):
            yield item


def locator(store: Store, asked: list[set[str]] | None = None) -> StoreLocator:
    async def addresses(wanted: Collection[str]) -> dict[str, str]:
        if asked is not None:
            asked.append(set(wanted))
        return ADDRESSES

    fakes: Any = store
    return StoreLocator(fakes, HostId("h0"), addresses, Peer)


async def test_sources_are_other_hosts_first_then_the_disk() -> None:
    store = Store({ONE: ["h0", "h1"], TWO: ["h2"]}, {TWO, THREE})
    found = await locator(store).sources([ONE, TWO, THREE])
    places = [(source._stub.address if isinstance(source, PeerSource) else "disk", keys) for source, keys in found]
    assert places == [("unix:/h1", [ONE]), ("unix:/h2", [TWO]), ("disk", [TWO, THREE])]


async def test_region_on_several_hosts_is_listed_under_each() -> None:
    found = await locator(Store({ONE: ["h1", "h2"]})).sources([ONE])
    assert [keys for _source, keys in found] == [[ONE], [ONE]], "the next one is tried if the first is gone"


async def test_hosts_that_are_named_are_asked_for() -> None:
    asked: list[set[str]] = []
    await locator(Store({ONE: ["h0", "h2"]}), asked).sources([ONE])
    await locator(Store({}, {ONE}), asked).sources([ONE])
    assert asked == [{"h2"}]


@pytest.mark.parametrize("where", [{}, {ONE: ["h0"]}, {ONE: ["h-dead"]}])
async def test_region_that_is_nowhere_says_what_to_do(where: dict[RegionKey, list[str]]) -> None:
    with pytest.raises(NotFound, match="REGIONS_LOST.*restore an older version"):
        await locator(Store(where)).sources([ONE])


async def test_peer_and_store_yield_what_they_have() -> None:
    peer, store = Peer("unix:/h1"), Store({})
    fakes: Any = store
    assert [item async for item in PeerSource(peer).fetch([ONE, TWO])] == [(ONE, b"peer"), (TWO, b"peer")]
    assert [item async for item in StoreSource(fakes).fetch([THREE])] == [(THREE, b"disk")]
    assert peer.asked == [ONE, TWO]
