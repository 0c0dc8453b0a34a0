"""What a host holds of its sessions' state, and its ways to the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from looseleaf.config import DaemonConfig
from looseleaf.ids import HostId
from looseleaf.rpc.service import Service
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.arena import HostArena
from looseleaf.services.worker_daemon.core.unit_cache import UnitCache
from looseleaf.services.worker_daemon.durability import DurabilityQueue
from looseleaf.services.worker_daemon.region_sources import StoreLocator
from looseleaf.services.worker_daemon.region_uploads import RegionUploads
from looseleaf.services.worker_daemon.regions import HostRegions, marks_of
from looseleaf.services.worker_daemon.save_patience import SavePatience
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.v1.shared_regions_pb2_grpc import SharedRegionServiceStub

log = structlog.get_logger()

COPY_THREADS: Final = 2


class HostState:
    """The host's arena, its cache of units, what waits to become durable; closed when the service stops.

    `addresses` and `peer_stub`: other hosts, as StoreLocator asks for them.
    """

    def __init__(
        self, service: Service[DaemonConfig], addresses: Callable[[Collection[str]], Awaitable[Mapping[str, str]]],
        peer_stub: Callable[[str], Any],
    ) -> None:  # fmt: skip
        self._config = config = service.config
        self._host_id = HostId(config.host_id)
        channel = service.open_channel(config.store, peer="store")
        self.store = StoreClient(channel, tenant=config.tenant)
        # For what workers save, which is repeated as long as they are there.
        self._saves = StoreClient(channel, tenant=config.tenant, restart_patience_s=0)
        self._executor = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="copy")
        self._arena = arena = HostArena(config.arena_bytes)
        locator = StoreLocator(self.store, self._host_id, addresses, peer_stub)
        marks = marks_of(
            arena.slots_max, config.arena_high_percent, config.arena_low_percent, config.arena_cache_bytes
        )
        self.regions = HostRegions(arena, locator, self._host_id, self._executor, marks)
        self._units = UnitCache()
        uploads = RegionUploads(self.store, SharedRegionServiceStub(channel), self.regions)
        self._eager = config.durability != "staged"
        self.durability = DurabilityQueue(self.store, self.regions, uploads.put, eager=self._eager)
        service.on_stop(self._close)

    def kernel_requests(self, owner: StateOwner) -> StateRequests:
        """What a kernel may ask for."""
        return StateRequests(
            owner, self.regions, self.store, self._host_id, self._config.ring_bytes, self.durability.add, self._eager,
            units=self._units,
        )  # fmt: skip

    def worker_requests(self, owner: StateOwner) -> StateRequests:
        """What a worker may ask for."""
        requests = self.kernel_requests(owner)
        # What a kernel is refused it still has, and can save later.
        requests.only_copy = True
        requests.saves = self._saves
        # What a worker saves nobody else has: it waits for the store as long as a save may take.
        requests.patience = SavePatience(self._config.save_timeout_s)
        return requests

    async def forget_last(self) -> None:
        """What an earlier daemon of this host staged died with its arena; the store must not point there any more."""
        for fallback in await self.store.forget_host(self._host_id):
            log.warning(
                "session_fell_back", session=fallback.session_id, lost_version=fallback.lost_version,
                version=fallback.version,
            )  # fmt: skip

    async def _close(self) -> None:
        await self.regions.close()
        self._executor.shutdown(cancel_futures=True)
        self._arena.close()
