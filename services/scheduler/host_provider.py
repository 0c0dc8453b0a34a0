"""The seam to whoever starts and ends hosts (design §10), and the provider of a one-machine cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from looseleaf.errors import Unavailable
from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.shapes import HostShape

LINE_BYTES_MAX: Final = 64 << 10
REQUEST_TIMEOUT_S: Final = 30.0
# States of a local host that does not run, or whose end is certain.
UNPAID_STATES: Final = ("standby", "stopping")


@dataclass(frozen=True, slots=True)
class ProvidedHost:
    """A host that the provider can start and end; `state` is its own word for people and logs.

    `paid`: it runs or boots, and its end has not begun.
    """

    host_id: HostId
    state: str
    paid: bool


class HostProvider(Protocol):
    """Called by the driver when the policy wants it. Every call may raise Unavailable PROVIDER_DOWN."""

    async def list(self) -> list[ProvidedHost]:
        """Every host that this provider may end, started or not."""

    async def shapes(self) -> tuple[HostShape, ...]:
        """The kinds of hosts that it can start, the usual one first; empty: it does not know."""

    async def ensure(self, count: int, shape: HostShape) -> tuple[HostId, ...]:
        """Starts `count` more hosts of a kind and does not wait for them; returns those that it could begin to start.

        Memory of 0 bytes: whichever.
        """

    async def drain(self, host_id: HostId, *, undo: bool = False) -> None:
        """The host is to go (or stays after all). It keeps running: cells there end first."""

    async def stop(self, host_id: HostId) -> None:
        """Ends a host on which nothing runs. Idempotent; returns when that has begun."""


class LocalHosts:
    """`looseleaf.local.host_pool` of this machine's supervisor."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def list(self) -> list[ProvidedHost]:
        """See HostProvider."""
        hosts = (await self._ask({"op": "list"}))["hosts"]
        return [
            ProvidedHost(HostId(host["host_id"]), host["state"], host["state"] not in UNPAID_STATES) for host in hosts]

    async def shapes(self) -> tuple[HostShape, ...]:
        """See HostProvider. All are alike; how much memory their GPUs have their daemons tell."""
        return (HostShape((await self._ask({"op": "list"}))["gpus"]),)

    async def ensure(self, count: int, shape: HostShape) -> tuple[HostId, ...]:
        """See HostProvider."""
        answer = await self._ask({"op": "ensure", "count": count, "gpus": shape.gpu_count})
        return tuple(HostId(host_id) for host_id in answer["started"])

    async def drain(self, host_id: HostId, *, undo: bool = False) -> None:
        """See HostProvider."""
        await self._ask({"op": "undrain" if undo else "drain", "host_id": host_id})

    async def stop(self, host_id: HostId) -> None:
        """See HostProvider."""
        await self._ask({"op": "stop", "host_id": host_id})

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES_MAX)
                with contextlib.closing(writer):
                    writer.write(json.dumps(request).encode() + b"\n")
                    await writer.drain()
                    answer: dict[str, Any] = json.loads(await reader.readline())
        except (OSError, TimeoutError, ValueError) as error:
            raise Unavailable(
                "PROVIDER_DOWN", f"the supervisor of this machine does not answer at {self._path} ({error})") from error
        if "error" in answer:
            raise Unavailable("PROVIDER_DOWN", f"the supervisor refused {request['op']}: {answer['error']}")
        return answer
