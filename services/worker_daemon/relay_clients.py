"""What carries a kernel's cells beyond its host, as its connection sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from looseleaf.ids import SessionId
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.worker_daemon.wire import Body
from looseleaf.v1 import frontend_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb


class RelayClients(Protocol):
    """What a kernel's connection reaches beyond this host."""

    store: StoreClient

    async def record_runs(self, session_id: SessionId, runs: list[Any]) -> int:
        """Hands the kernel's log on; returns the sequence that the frontend expects next."""
        ...

    async def prepare(self, session_id: SessionId, body: Body) -> Body:
        """Has a cell prepared; the body of the reply."""
        ...

    def submit(
        self, request: frontend_pb2.SubmitCellRequest
    ) -> AsyncGenerator[frontend_pb2.SubmitCellResponse, None]:
        """Queue news and at last the lease."""
        ...

    def execute(
        self, address: str, requests: AsyncIterator[pb.ExecuteRequest]
    ) -> AsyncGenerator[pb.ExecuteResponse, None]:
        """The running cell on the host at `address`."""
        ...

    async def address(self, host_id: str) -> str:
        """Where the host's daemon listens; empty if it is not there."""
        ...

    async def evict_workers(self, session_id: SessionId) -> tuple[int, list[str]]:
        """Ends the session's idle workers on all hosts: how many, and the hosts that did not answer."""
        ...

    async def release_unsaved(self, session_id: SessionId, host_id: str, worker_id: str, names: list[str]) -> None:
        """The session needs these unsaved variables of a worker on any host no more."""
        ...
