"""Where a batch run's GPU cells go: a given daemon, the running cluster, or one that lives as long as the run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looseleaf.errors import NotFound

if TYPE_CHECKING:
    from looseleaf.local.record import ClusterRecord


@dataclass(frozen=True)
class Pool:
    """`endpoint`: the daemon's kernel socket; `more_endpoints`: those of the cluster's other lasting hosts.

    `gpus`: of each host. `embedded`: the cluster was started for this run and ends with it. `delays`: its virtual GPUs
    imitate the times of a real attach; None: not known.
    """

    endpoint: str
    device: str = ""
    gpus: int = 0
    embedded: bool = False
    more_endpoints: tuple[str, ...] = ()
    delays: bool | None = None

    def endpoint_of(self, index: int) -> str:
        """The daemon for the run's `index`-th notebook: the hosts take turns."""
        endpoints = (self.endpoint, *self.more_endpoints)
        return endpoints[index % len(endpoints)]


@contextlib.contextmanager
def open_pool(endpoint: str, gpus: int | None, device: str | None, *, delays: bool = True) -> Iterator[Pool]:
    """The pool for a run: at `endpoint`, else the running cluster, else an embedded one in a temporary folder.

    A running cluster that has other GPUs than asked for, or delays that are not wanted, is left alone. Raises as
    `LocalCluster.start`.
    """
    from looseleaf.local.cluster import LocalCluster, cluster_config

    if endpoint:
        yield Pool(endpoint.removeprefix("unix:"))
        return
    try:
        running = LocalCluster.attach(cluster_config({}).run_dir)
    except NotFound:
        running = None
    if running is not None and _serves(running.record, gpus, device, delays):
        yield _pool_of(running.record, embedded=False)
        return
    folder = tempfile.mkdtemp(prefix="looseleaf-run-")
    # The person's own setting counts where this run has nothing to say.
    settings: dict[str, Any] = {} if delays else {"emulated_delays": False}
    try:
        with LocalCluster.start(data=Path(folder), gpus=gpus, device=device, **settings) as cluster:
            yield _pool_of(cluster.record, embedded=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serves(record: ClusterRecord, gpus: int | None, device: str | None, delays: bool) -> bool:
    fits = gpus in (None, record.gpus_per_host) and device in (None, "auto", record.device)
    return fits and (delays or record.device != "emulated" or not record.emulated_delays)


def _pool_of(record: ClusterRecord, *, embedded: bool) -> Pool:
    # Not those of hosts that demand starts and ends: nothing may listen there, and they end without asking kernels.
    first, *others = (record.kernel_sockets[host_id] for host_id in record.hosts)
    delays = record.emulated_delays if record.device == "emulated" else False
    return Pool(first, record.device, record.gpus_per_host, embedded, tuple(others), delays)
