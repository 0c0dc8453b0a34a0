"""Hosts of a one-machine cluster that come and go: daemons that the scheduler has started and ended by demand.

The supervisor serves a Unix socket; each line is a JSON request, answered by a line:
`{"op": "list"}` -> `{"hosts": [{"host_id", "state"}], "gpus": g}` with state standby, booting, up, draining or
stopping, and g the GPUs that each has;
`{"op": "ensure", "count": n, "gpus": g}` -> `{"started": [host ids]}`, fewer than n if no more stand by, none if hosts
have another number of GPUs;
`{"op": "drain" | "undrain" | "stop", "host_id": h}` -> `{}`. An error is `{"error": text}`.
Hosts that the cluster was started with stay for its whole life and are not listed: kernels live there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from looseleaf.local.process import ServiceProcess
from looseleaf.logs import get_logger

LINE_BYTES_MAX: Final = 64 << 10
REQUEST_TIMEOUT_S: Final = 30.0

log = get_logger()


class HostPool:
    """The hosts that stand by, each with the task that keeps it running once it was asked for.

    `changed` is called when the record of a host's service changed outside of `watch`.
    """

    def __init__(
        self, services: Mapping[str, ServiceProcess], watch: Callable[[ServiceProcess], Awaitable[None]],
        changed: Callable[[], None], gpus: int, boot_s: float, stop_timeout_s: float,
    ) -> None:
        self._services = services
        self._gpus = gpus
        self._watch, self._changed = watch, changed
        self._boot_s, self._stop_timeout_s = boot_s, stop_timeout_s
        self._states = dict.fromkeys(services, "standby")
        for service in services.values():
            service.record.state = "standby"
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}

    def states(self) -> dict[str, str]:
        """Every host's state."""
        return dict(self._states)

    def ensure(self, count: int, gpus: int) -> list[str]:
        """Starts up to `count` of those that stand by, none if they do not have so many GPUs; returns which."""
        standby = [host_id for host_id, state in self._states.items() if state == "standby"]
        chosen = standby[:count] if gpus == self._gpus else []
        for host_id in chosen:
            self._states[host_id] = "booting"
            self._lives[host_id] = asyncio.create_task(self._live(host_id))
        return chosen

    def mark(self, host_id: str, draining: bool) -> None:
        """A host is to go, or stays after all. Its daemon need not know: the scheduler gives it no new work."""
        if self._states[host_id] in ("up", "draining"):
            self._states[host_id] = "draining" if draining else "up"

    def stop(self, host_id: str) -> None:
        """Ends a host, at once if it boots; it stands by when its daemon is gone."""
        if self._states[host_id] not in ("standby", "stopping"):
            self._states[host_id] = "stopping"
            self._stops[host_id] = asyncio.create_task(self._end(host_id))

    async def aclose(self) -> None:
        """Watches no host any more; the supervisor ends their daemons with the others."""
        tasks = [*self._lives.values(), *self._stops.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, host_id: str) -> None:
        service = self._services[host_id]
        await asyncio.sleep(self._boot_s)
        try:
            service.start()
        except OSError as error:
            log.error("host_not_started", host=host_id, cause=str(error))
            self._states[host_id] = "standby"
            return
        self._states[host_id] = "up"
        self._changed()
        log.info("host_started", host=host_id)
        await self._watch(service)

    async def _end(self, host_id: str) -> None:
        life = self._lives.pop(host_id)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        service = self._services[host_id]
        await service.stop(self._stop_timeout_s)
        self._states[host_id] = service.record.state = "standby"
        self._changed()
        log.info("host_ended", host=host_id)

    # --- the socket ---

    async def serve(self, path: Path) -> asyncio.Server:
        """Answers requests at `path`, where nothing must be, until the server is closed; its file stays."""
        return await asyncio.start_unix_server(self._serve_one, path, limit=LINE_BYTES_MAX)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError), contextlib.closing(writer):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                line = await reader.readline()
                writer.write(json.dumps(self.answer(line)).encode() + b"\n")
                await writer.drain()

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one request."""
        try:
            request = json.loads(line)
            match request["op"]:
                case "list":
                    hosts = [{"host_id": host, "state": state} for host, state in self._states.items()]
                    return {"hosts": hosts, "gpus": self._gpus}
                case "ensure":
                    return {"started": self.ensure(int(request["count"]), int(request["gpus"]))}
                case "drain" | "undrain" as op:
                    self.mark(request["host_id"], op == "drain")
                case "stop":
                    self.stop(request["host_id"])
                case other:
                    return {"error": f"no request {other!r}"}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {}
