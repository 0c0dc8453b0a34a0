"""Whether a service answers and the pool is complete; one short call each, on a channel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from looseleaf.errors import LooseLeafError
from looseleaf.rpc.address import socket_path
from looseleaf.rpc.client import open_channel
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub

PROBE_TIMEOUT_S: Final = 2.0


async def health_state(address: str, service: str = "", timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """SERVING, NOT_SERVING, ...; raises LooseLeafError if the server does not answer."""
    async with open_channel(address, peer="service") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout_s=timeout_s)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def is_serving(address: str) -> bool:
    """Whether the server says SERVING now."""
    path = socket_path(address)
    if path is not None and not path.exists():
        return False
    try:
        return await health_state(address) == "SERVING"
    except LooseLeafError:
        return False


async def get_pool(scheduler_address: str, timeout_s: float = PROBE_TIMEOUT_S) -> Any:
    """The scheduler's GetPoolResponse; raises LooseLeafError."""
    async with open_channel(scheduler_address, peer="scheduler") as channel:
        return await SchedulerServiceStub(channel).GetPool(scheduler_pb2.GetPoolRequest(), timeout_s=timeout_s)


async def pool_problem(scheduler_address: str, host_ids: Sequence[str]) -> tuple[str, str]:
    """What is missing until the scheduler is ready and lists all hosts as alive, and the host that lacks; or two ""."""
    try:
        pool = await get_pool(scheduler_address)
    except LooseLeafError as error:
        return str(error), ""
    alive = {host.host.host_id for host in pool.hosts if host.liveness == "alive"}
    missing = sorted(set(host_ids) - alive)
    if missing:
        return f"the scheduler has no heartbeat of {', '.join(missing)}", missing[0]
    return ("", "") if pool.ready else ("the scheduler has not finished its first round", "")
