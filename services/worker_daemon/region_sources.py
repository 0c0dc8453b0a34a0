"""Where regions are when the own arena lacks them: other hosts' arenas, then the store's disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from looseleaf.errors import NotFound
from looseleaf.ids import HostId
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.region_fetching import RegionSource
from looseleaf.v1 import checkpoint_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb

FETCH_TIMEOUT_S = 120.0


class PeerSource:
    """Another host's arena."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    async def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        """See RegionSource."""
        request = pb.FetchRegionsRequest(regions=[region_ref(key) for key in keys])
        async with self._stub.FetchRegions(request, timeout_s=FETCH_TIMEOUT_S) as chunks:
            async for item in chunks:
                region = item.chunk.region
                yield (region.region_id, region.length_bytes), item.chunk.data


class StoreSource:
    """The store's disk."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store

    async def fetch(self, keys: Sequence[RegionKey]) -> AsyncGenerator[tuple[RegionKey, bytes], None]:
        """See RegionSource."""
        async for region_id, length_bytes, data in self._store.get_regions(keys):
            yield (region_id, length_bytes), data


class StoreLocator:
    """Asks the store's region index; `addresses(wanted)` tells the hosts that are alive, the wanted ones surely."""

    def __init__(
        self,
        store: StoreClient,
        host_id: HostId,
        addresses: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
        peer_stub: Callable[[str], Any],
    ) -> None:
        self._store = store
        self._host_id = host_id
        self._addresses = addresses
        self._peer_stub = peer_stub

    async def sources(self, keys: Sequence[RegionKey]) -> list[tuple[RegionSource, list[RegionKey]]]:
        """Other hosts first, the store's disk last, each with the keys it is said to have."""
        by_host: dict[str, list[RegionKey]] = {}
        on_disk: list[RegionKey] = []
        for location in await self._store.locate(keys):
            key = (location.region.region_id, location.region.length_bytes)
            for host_id in location.host_ids:
                if host_id != self._host_id:
                    by_host.setdefault(host_id, []).append(key)
            if location.durable:
                on_disk.append(key)
        addresses = await self._addresses(by_host.keys()) if by_host else {}
        found: list[tuple[RegionSource, list[RegionKey]]] = [
            (PeerSource(self._peer_stub(addresses[host_id])), its_keys)
            for host_id, its_keys in by_host.items()
            if host_id in addresses
        ]
        if on_disk:
            found.append((StoreSource(self._store), on_disk))
        if not found:
            raise NotFound(
                "REGIONS_LOST",
                f"{len(keys)} pieces of saved state are on no live host and not on the store's "
                "disk; restore an older version",
                regions=len(keys),
            )
        return found

    async def forget(self, host_id: HostId, keys: Sequence[RegionKey]) -> None:
        """Tells the store that this host's arena no longer holds the regions."""
        await self._store.forget_host_regions(host_id, keys)


def region_ref(key: RegionKey) -> checkpoint_pb2.RegionRef:
    """The key as a message."""
    return checkpoint_pb2.RegionRef(region_id=key[0], length_bytes=key[1])
