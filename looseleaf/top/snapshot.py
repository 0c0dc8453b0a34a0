"""One look at the whole cluster by the services' own RPCs, as plain values: what `looseleaf top --json` prints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final

from looseleaf.errors import LooseLeafError
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.v1 import checkpoint_store_admin_pb2, checkpoint_store_pb2, scheduler_pb2, worker_daemon_pb2
from looseleaf.v1.checkpoint_store_admin_pb2_grpc import CheckpointStoreAdminServiceStub
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

QUEUE_MAX: Final = 100
ENDED_MAX: Final = 20
SESSIONS_MAX: Final = 200
# Daemons of hosts beyond these are not asked; the scheduler's view of them is shown.
HOSTS_ASKED_MAX: Final = 64

Plain = dict[str, Any]


class ClusterEye:
    """Keeps a channel to each service; belongs to one event loop. Every call has `timeout_s`."""

    def __init__(self, scheduler: str, store: str, timeout_s: float = 2.0) -> None:
        self._scheduler = open_channel(scheduler, peer="scheduler")
        self._store = open_channel(store, peer="store")
        self._daemons: dict[str, Channel] = {}
        self._timeout_s = timeout_s

    async def look(self) -> Plain:
        """The cluster now. What does not answer is missing (None) and named in `problems`; nothing is raised for it."""
        problems: list[str] = []
        pool, sessions, stats = await asyncio.gather(
            _plain(self._pool(), problems), _plain(self._sessions(), problems), _plain(self._stats(), problems)
        )
        addresses = _addresses(pool)
        await self._close_others(set(addresses.values()))
        told = await asyncio.gather(*(_plain(self._host(address), problems) for address in addresses.values()))
        return {
            "taken_unix_ms": time.time_ns() // 1_000_000,
            "pool": pool,
            "hosts": dict(zip(addresses, told, strict=True)),
            "sessions": None if sessions is None else sessions["sessions"],
            "store": stats,
            "problems": problems,
        }

    async def close(self) -> None:
        """Closes every channel."""
        await asyncio.gather(*(channel.close() for channel in (self._scheduler, self._store, *self._daemons.values())))

    async def _close_others(self, addresses: set[str]) -> None:
        for address in self._daemons.keys() - addresses:
            await self._daemons.pop(address).close()

    def _pool(self) -> Awaitable[Any]:
        request = scheduler_pb2.GetPoolRequest(queue_max=QUEUE_MAX, ended_max=ENDED_MAX)
        pool: Awaitable[Any] = SchedulerServiceStub(self._scheduler).GetPool(request, timeout_s=self._timeout_s)
        return pool

    def _sessions(self) -> Awaitable[Any]:
        request = checkpoint_store_pb2.ListSessionsRequest(limit=SESSIONS_MAX)
        stub = CheckpointStoreServiceStub(self._store)
        sessions: Awaitable[Any] = stub.ListSessions(request, timeout_s=self._timeout_s)
        return sessions

    def _stats(self) -> Awaitable[Any]:
        request = checkpoint_store_admin_pb2.GetStoreStatsRequest(totals_only=True)
        stub = CheckpointStoreAdminServiceStub(self._store)
        stats: Awaitable[Any] = stub.GetStoreStats(request, timeout_s=self._timeout_s)
        return stats

    def _host(self, address: str) -> Awaitable[Any]:
        if address not in self._daemons:
            self._daemons[address] = open_channel(address, peer="daemon")
        stub = WorkerDaemonServiceStub(self._daemons[address])
        host: Awaitable[Any] = stub.GetHost(worker_daemon_pb2.GetHostRequest(), timeout_s=self._timeout_s)
        return host


def _addresses(pool: Plain | None) -> dict[str, str]:
    """Where the daemons of live hosts are, by host id."""
    live = [host for host in (pool or {}).get("hosts", []) if host["liveness"] != "dead"]
    return {host["host"]["host_id"]: host["host"]["address"] for host in live[:HOSTS_ASKED_MAX]}


async def _plain(call: Awaitable[Any], problems: list[str]) -> Plain | None:
    from google.protobuf.json_format import MessageToDict

    try:
        answer = await call
    except LooseLeafError as error:
        problems.append(str(error))
        return None
    found: Plain = MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )  # fmt: skip
    return found
