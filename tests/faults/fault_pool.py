"""A pool of real processes whose links can be cut and whose services end or wait at named places."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from looseleaf.local.cluster import LocalCluster
from looseleaf.local.probe import get_pool
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.store_client import StoreClient
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub
from tests.cluster.conftest import Notebook, running_cluster
from tests.faults.held_cell import LIMIT_S, until
from tests.faults.links import Links

CALL_S = 30.0
# h0 has the kernels and no GPU, so that the hosts of cells can be lost without them.
GPU_HOSTS = ("h1", "h2")
GPU_MEMORY_BYTES = 64 << 20
SERVICES = {"checkpoint-store": "checkpoint_store", "scheduler": "scheduler", "daemon": "worker_daemon"}


class Pool:
    """Host h0 with kernels and without GPUs, h1 and h2 with one virtual GPU each.

    Links by name: `h1-scheduler` and `h1-store` from the daemon h1 to that service, `h1-in` from anybody to it.
    """

    def __init__(self, folder: Path) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="ll-")
        self.folder = folder
        self.links = Links(Path(self._sockets.name))
        run_dir = folder / "d" / "run"
        # Zygotes that start soon: hosts are started again and again here.
        common = {"--gpu-memory-bytes": str(GPU_MEMORY_BYTES), "--base-imports": '["torch"]'}
        flags: dict[str, dict[str, str]] = {"h0": {"--gpus": "0", "--cell-gpus": "1", **common}}
        for host in GPU_HOSTS:
            flags[host] = {
                **common,
                "--scheduler": self.links.open(f"{host}-scheduler", str(run_dir / "scheduler.sock")),
                "--store": self.links.open(f"{host}-store", str(run_dir / "checkpoint-store.sock")),
                "--advertise": self.links.open(f"{host}-in", str(run_dir / f"daemon-{host}.sock")),
            }
        (folder / "flags.json").write_text(json.dumps(flags))
        program = str(Path(__file__).with_name("faulty_service.py"))
        commands = {kind: [sys.executable, program, str(folder), module] for kind, module in SERVICES.items()}
        try:
            self._running = running_cluster(folder, hosts=3, gpus=1, commands=commands)
        except BaseException:
            self._close_links()
            raise
        self.cluster: LocalCluster = self._running.__enter__()

    def close(self) -> None:
        """Ends everything."""
        try:
            self._running.__exit__()
        finally:
            self._close_links()

    def _close_links(self) -> None:
        self.links.close()
        self._sockets.cleanup()

    def mend(self) -> None:
        """Nothing is cut, held or paused any more, and all hosts are alive."""
        for kind in ("hold-*", "die-*", "at-*", "disk-full"):
            for file in self.folder.glob(kind):
                file.unlink()
        self.links.mend()
        for service in self.cluster.record.services:
            self.cluster.wait_serving(service, LIMIT_S)
        for host in GPU_HOSTS:
            self.until_host(host, "alive")

    # --- places at which services end or wait ---

    def die_at(self, place: str) -> None:
        """The next time that the service comes there it ends."""
        (self.folder / f"die-{place}").touch()

    def hold_at(self, place: str) -> None:
        """Whoever comes there waits until `go_on`."""
        (self.folder / f"hold-{place}").touch()

    def until_at(self, place: str) -> None:
        """Somebody came there and waits."""
        until((self.folder / f"at-{place}").exists, f"nobody came to {place}")

    def go_on(self, place: str) -> None:
        """Ends `hold_at`."""
        (self.folder / f"hold-{place}").unlink()
        (self.folder / f"at-{place}").unlink(missing_ok=True)

    def fill_disk(self) -> None:
        """The services' disk has no room, until `empty_disk`."""
        (self.folder / "disk-full").touch()

    def empty_disk(self) -> None:
        """It has as much as it has."""
        (self.folder / "disk-full").unlink()

    def kill(self, service: str) -> None:
        """SIGKILL; returns when its successor serves."""
        pid = self.cluster.pid(service)
        self.cluster.kill(service)
        self.cluster.wait_serving(service, LIMIT_S, other_than=pid)

    def power_off(self, *hosts: str) -> None:
        """SIGKILL for the hosts' daemons with all that runs there; returns when they serve again."""
        pids = {f"daemon-{host}": self.cluster.pid(f"daemon-{host}") for host in hosts}
        for pid in pids.values():
            daemon = psutil.Process(pid)
            family = daemon.children(recursive=True)
            daemon.kill()
            for process in family:
                if process.is_running():
                    process.kill()
        for service, pid in pids.items():
            self.cluster.wait_serving(service, LIMIT_S, other_than=pid)

    # --- what services say ---

    def view(self) -> Any:
        """The scheduler's view of the pool."""
        return asyncio.run(get_pool(self.cluster.address("scheduler"), CALL_S))

    def seen(self, host: str) -> Any:
        """The scheduler's view of one host."""
        return next(state for state in self.view().hosts if state.host.host_id == host)

    def until_host(self, host: str, liveness: str) -> None:
        """Until the scheduler says so of the host."""
        until(lambda: self.view().ready and self.seen(host).liveness == liveness, f"{host} is not {liveness}")

    def until_unused(self) -> None:
        """Until no GPU is leased."""
        until(lambda: not any(state.leases for state in self.view().hosts), "a lease is never released")

    def daemon(self, host: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Calls the daemon itself, past its link."""

        async def ask() -> Any:
            async with open_channel(self.cluster.address(f"daemon-{host}"), peer="daemon") as channel:
                return await call(WorkerDaemonServiceStub(channel))

        return asyncio.run(ask())

    def host(self, host: str) -> Any:
        """The host as its own daemon tells it."""
        return self._described(host).state

    def arena_bytes(self, host: str) -> int:
        """What its arena holds."""
        return int(self._described(host).arena_used_bytes)

    def _described(self, host: str) -> Any:
        return self.daemon(host, lambda stub: stub.GetHost(pb.GetHostRequest(), timeout_s=CALL_S))

    def leases(self) -> list[Any]:
        """All leases, as their daemons tell them."""
        return [lease for host in GPU_HOSTS for lease in self.host(host).leases]

    def worker_of(self, lease: Any) -> Any:
        """The worker that runs or saves the leased cell, as its daemon tells it."""
        [worker] = [w for w in self.host(lease.host.host_id).workers if w.execution_id == lease.execution_id]
        return worker

    def until_saving(self, lease: Any) -> Any:
        """Until the leased cell has ended and is saved; its worker."""
        saving = scheduler_pb2.WORKER_STAGE_SAVING
        until(lambda: self.worker_of(lease).stage == saving, "the cell never ended")
        return self.worker_of(lease)

    def evicts(self, lease: Any, worker: Any) -> bool:
        """Whether the host would end the cell's worker for another."""
        order = pb.EvictWorkerRequest(request_id=f"e-{worker.worker_id}", worker_id=worker.worker_id, epoch=lease.epoch)
        return bool(self.daemon(lease.host.host_id, lambda stub: stub.EvictWorker(order, timeout_s=CALL_S)).evicted)

    def store(self, call: Callable[[StoreClient], Awaitable[Any]]) -> Any:
        """Calls the store."""

        async def ask() -> Any:
            async with open_channel(self.cluster.address("checkpoint-store"), peer="store") as channel:
                return await call(StoreClient(channel))

        return asyncio.run(ask())

    def logged(self, service: str, word: str) -> int:
        """How often the service has logged that."""
        return Path(self.cluster.record.services[service].log).read_text().count(word)

    def head(self, session_id: str) -> Any:
        """The session as the store has it."""
        return next(row for row in self.store(lambda store: store.list_sessions()) if row.session_id == session_id)

    def line_of_versions(self, session_id: str) -> list[int]:
        """The session's versions, oldest first; each has the one before as its parent, and epochs never fall."""
        rows = sorted(self.store(lambda store: store.list_versions(session_id)), key=lambda row: row.version)
        for before, row in pairwise(rows):
            assert row.parent == before.version and row.epoch >= before.epoch, rows
        return [row.version for row in rows]

    # --- notebooks ---

    def notebook(self, folder: Path, env: dict[str, str] | None = None) -> Notebook:
        """A kernel on h0."""
        return Notebook(self.cluster.kernel_socket("h0"), folder, env)
