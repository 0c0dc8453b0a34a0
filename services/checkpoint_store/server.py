"""The checkpoint store as a process: opens its folder, serves, collects garbage, closes cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from looseleaf.config import StoreConfig
from looseleaf.errors import LooseLeafError
from looseleaf.logs import get_logger
from looseleaf.rpc.dedupe import RequestMemory
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.services.checkpoint_store.admin_servicer import CheckpointStoreAdminServicer
from looseleaf.services.checkpoint_store.metrics import StoreMetrics
from looseleaf.services.checkpoint_store.servicer import CheckpointStoreServicer, RunBlocking
from looseleaf.services.checkpoint_store.shared_regions import SharedRegionServicer
from looseleaf.services.checkpoint_store.store import Store, StoreLimits, open_store
from looseleaf.services.checkpoint_store.verifier import verify_bytes
from looseleaf.v1.checkpoint_store_admin_pb2_grpc import add_CheckpointStoreAdminServiceServicer_to_server
from looseleaf.v1.checkpoint_store_pb2_grpc import add_CheckpointStoreServiceServicer_to_server
from looseleaf.v1.shared_regions_pb2_grpc import add_SharedRegionServiceServicer_to_server

log = get_logger()

# Between parts of at most 64 MiB.
SCRUB_PAUSE_S: Final = 1.0


async def build(service: Service[StoreConfig]) -> Sequence[Registration]:
    """Opens the store in `config.data`; the database has one owner, so a second process is refused here."""
    config = service.config
    store = await service.run_blocking(open_store, config.data, limits_of(config), kind=config.database)

    async def close() -> None:
        await service.run_blocking(store.close)

    service.on_stop(close)
    service.on_stopping(store.collector.stop)
    metrics = StoreMetrics(service.registry, store)
    memory = RequestMemory(entries_max=config.memory_entries_max)
    servicer = CheckpointStoreServicer(
        store, service.run_blocking, memory, metrics, config.streams_waiting_max
    )
    # Registered last, so it runs first: nothing may use the database once it is closed.
    service.on_stop(servicer.drain)
    service.start_task(collect_forever(servicer, config.garbage_interval_s), name="garbage")
    left_s = await service.run_blocking(store.index.scrub_left_s, config.scrub_interval_s)
    service.start_task(scrub_forever(service, store, left_s), name="scrub")
    log.info("store_opened", folder=str(config.data), sessions=store.sessions.count, used_bytes=store.usage.used_bytes)
    admin = CheckpointStoreAdminServicer(
        store, service.run_blocking, memory,
        lambda folder: open_store(folder, limits_of(config), kind=config.database),
    )  # fmt: skip
    shared = SharedRegionServicer(store, service.run_blocking, config.streams_waiting_max)
    metrics.follow(takes=shared.takes)
    return [
        Registration(add_CheckpointStoreServiceServicer_to_server, servicer),
        Registration(add_CheckpointStoreAdminServiceServicer_to_server, admin),
        Registration(add_SharedRegionServiceServicer_to_server, shared),
    ]


def limits_of(config: StoreConfig) -> StoreLimits:
    """The settings that the store itself needs."""
    return StoreLimits(
        sessions_max=config.sessions_max,
        versions_kept_max=config.versions_kept_max,
        versions_kept_s=config.versions_kept_s,
        version_use_s=config.version_use_s,
        manifest_bytes_max=config.manifest_bytes_max,
        stored_bytes_max=config.stored_bytes_max,
        tenants_max=config.tenants_max,
        tenant_bytes_max=config.tenant_bytes_max,
        session_bytes_max=config.session_bytes_max,
        compress_units=config.compress_units,
        disk_free_bytes_min=config.disk_free_bytes_min,
        orphan_grace_s=config.orphan_grace_s,
    )


async def collect_forever(servicer: CheckpointStoreServicer, interval_s: float) -> None:
    """Collects garbage at intervals; a run that fails is logged and tried again."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            freed = await servicer.collect()
        except LooseLeafError as error:
            log.warning("garbage_collection_failed", reason=error.reason, message=error.message)
            continue
        log.info(
            "garbage_collected", versions_dropped=freed.versions_dropped, units_deleted=freed.units_deleted,
            regions_deleted=freed.regions_deleted,
        )  # fmt: skip


async def scrub_forever(service: Service[StoreConfig], store: Store, left_s: float) -> None:
    """Reads all bytes in `left_s`, then at intervals, slowly: what is damaged is taken again while some host has it."""
    while True:
        await asyncio.sleep(left_s)
        left_s = service.config.scrub_interval_s
        try:
            checked, bad = await scrub(store, service.run_blocking, SCRUB_PAUSE_S)
        except LooseLeafError as error:
            log.warning("scrub_failed", reason=error.reason, message=error.message)
            continue
        log.info("scrubbed", checked=checked, bad=bad)


async def scrub(store: Store, run_blocking: RunBlocking, pause_s: float) -> tuple[int, int]:
    """Reads all units and regions and notes the end; returns how many there were, and how many of them were damaged or
    could not be read."""
    checked = bad = 0
    parts = verify_bytes(store)
    while (part := await run_blocking(next, parts, None)) is not None:
        checked, bad = checked + part[0], bad + len(part[1])
        await asyncio.sleep(pause_s)
    await run_blocking(store.index.note_scrub)
    return checked, bad


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service until SIGTERM; returns its exit code."""
    return service_main("checkpoint-store", StoreConfig, build, argv)
