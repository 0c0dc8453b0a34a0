"""A gRPC server as every service of ours has it: health, reflection, interceptors, safe sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from looseleaf.errors import PreconditionFailed
from looseleaf.rpc import policy
from looseleaf.rpc.address import check_listen, claimed_socket, host_port, socket_path
from looseleaf.rpc.interceptors import LayerInterceptor
from looseleaf.rpc.metrics import RpcMetrics


@dataclass(frozen=True)
class Registration:
    """One servicer: `Registration(add_SchedulerServiceServicer_to_server, servicer)`."""

    add: Callable[[Any, Any], None]
    servicer: Any


class _Names:
    """Stands for a server to learn the full name of what a generated `add_*_to_server` adds."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self.names.extend(handler.service_name() for handler in handlers)

    def add_registered_method_handlers(self, _name: str, _handlers: Any) -> None:
        """Nothing to learn here."""


def service_names(registrations: Sequence[Registration]) -> list[str]:
    """Full protobuf names of the services."""
    names = _Names()
    for registration in registrations:
        registration.add(registration.servicer, names)
    return names.names


class RpcServer:
    """Binds at `bind`, answers from `start`, is SERVING from `set_ready`; all on one event loop.

    `listen` is `unix:/path` (0600, in a folder that others cannot write) or `host:port` (loopback unless
    `allow_remote_tcp`; port 0 picks one). At most CONCURRENT_CALLS_MAX calls run at once.
    """

    def __init__(
        self,
        listen: str,
        *,
        registry: CollectorRegistry | None = None,
        message_bytes_max: int = policy.MESSAGE_BYTES_MAX,
        allow_remote_tcp: bool = False,
    ) -> None:
        check_listen(listen, allow_remote_tcp=allow_remote_tcp)
        self.address = listen
        self.metrics = RpcMetrics(registry or CollectorRegistry())
        self._path = socket_path(listen)
        self._inode: int | None = None
        self._names: list[str] = []
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server = grpc.aio.server(
            interceptors=[LayerInterceptor(self.metrics)],
            options=policy.server_options(message_bytes_max),
            maximum_concurrent_rpcs=policy.CONCURRENT_CALLS_MAX,
        )

    def bind(self) -> str:
        """Takes the address and returns it, with the port that was picked; raises PreconditionFailed ADDRESS_IN_USE."""
        if self._path is not None:
            self._bind_socket(self._path)
        else:
            host, port = host_port(self.address)
            named = f"[{host}]" if ":" in host else host
            self.address = f"{named}:{self._add_port(port_of=f'{named}:{port}')}"
        return self.address

    async def start(self, registrations: Sequence[Registration]) -> None:
        """Serves `registrations`, health (NOT_SERVING) and reflection."""
        for registration in registrations:
            registration.add(registration.servicer, self._server)
        self._names = service_names(registrations)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        await self.set_ready(False)
        await self._server.start()

    async def set_ready(self, ready: bool) -> None:
        """Health of the whole and of each service by its full name."""
        state = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, *self._names):
            await self._health.set(name, state)

    async def stop(self, grace_s: float) -> None:
        """Health off, no new calls, running ones get `grace_s`; removes the socket file. Idempotent."""
        await self.set_ready(False)
        await self._server.stop(grace_s)
        self.remove_socket()

    def remove_socket(self) -> None:
        """Removes our socket file, but not one that another server has put in its place."""
        if self._path is None or self._inode is None:
            return
        try:
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            # gRPC removes the file itself when it closes the listener.
            return

    def _bind_socket(self, path: Path) -> None:
        with claimed_socket(path):
            self._add_port(port_of=f"unix:{path}")
            path.chmod(0o600)
            self._inode = path.lstat().st_ino

    def _add_port(self, port_of: str) -> int:
        try:
            port = self._server.add_insecure_port(port_of)
        except RuntimeError as error:
            raise PreconditionFailed("ADDRESS_IN_USE", f"cannot listen on {port_of}: {error}") from error
        if port == 0:
            raise PreconditionFailed("ADDRESS_IN_USE", f"cannot listen on {port_of}: another process has it")
        return port
