"""A service with other addresses and with places at which it ends or waits: `faulty_service.py FOLDER NAME FLAGS...`.

FOLDER/flags.json has the flags that differ by host id. A file FOLDER/die-PLACE is taken away, and the process with it,
when it comes to that place; at FOLDER/hold-PLACE it makes FOLDER/at-PLACE and goes on when the first file is gone.
Places: the scheduler's `grant` and `granted` (before an order to a daemon, after its answer), the store's `commit` and
`committed`, and of the daemon h1 `h1-boot` (nothing was done yet), `h1-put` (regions of a save are in the arena) and
`h1-fetch` (a worker that is made ready wants its objects).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

POLL_S = 0.01
# Service -> (module, class, method, place before, place after).
PLACES = {
    "scheduler": [("daemons", "DaemonOrders", "grant", "grant", "granted")],
    "checkpoint_store": [("servicer", "CheckpointStoreServicer", "CommitVersion", "commit", "committed")],
    "worker_daemon": [
        ("state_requests", "StateRequests", "put_regions", "", "put"),
        ("state_requests", "StateRequests", "fetch_units", "fetch", ""),
    ],
}


async def pass_place(folder: Path, place: str) -> None:
    """Does what the files of this place say."""
    if (folder / f"die-{place}").exists():
        (folder / f"die-{place}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    hold = folder / f"hold-{place}"
    if hold.exists():
        (folder / f"at-{place}").touch()
        while hold.exists():  # noqa: ASYNC110 another process takes it away
            await asyncio.sleep(POLL_S)


def add_places(folder: Path, service: str, host: str) -> None:
    """From now on the service's methods stop at their places; those of a daemon have its host's name before theirs."""
    prefix = f"{host}-" if host else ""
    for module, owner_name, method, before, after in PLACES[service]:
        owner = getattr(importlib.import_module(f"looseleaf.services.{service}.{module}"), owner_name)
        original = getattr(owner, method)

        async def with_places(
            self: Any, *args: Any, original: Any = original, before: str = before, after: str = after
        ) -> Any:
            if before:
                await pass_place(folder, prefix + before)
            answer = await original(self, *args)
            if after:
                await pass_place(folder, prefix + after)
            return answer

        setattr(owner, method, with_places)


def add_full_disk(folder: Path) -> None:
    """While there is a file FOLDER/disk-full, every disk that this process asks about has no room."""
    original = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        found = original(path)
        if not (folder / "disk-full").exists():
            return found
        fields = list(found)
        fields[4] = 0  # f_bavail
        return os.statvfs_result(fields)

    os.statvfs = statvfs


def main(folder: Path, service: str, flags: list[str]) -> int:
    """As the service's own `main`."""
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    host = given.get("--host-id", "")
    given.update(json.loads((folder / "flags.json").read_text()).get(host, {}))
    add_places(folder, service, host)
    add_full_disk(folder)
    if host:
        asyncio.run(pass_place(folder, f"{host}-boot"))
    server = importlib.import_module(f"looseleaf.services.{service}.server")
    return int(server.main([text for flag in given.items() for text in flag]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
