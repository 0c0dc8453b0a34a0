"""One batch run from notebook file to executed notebook, report and exit state."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from looseleaf.batch.client import BatchClient
from looseleaf.batch.report import CellRecord, report_of
from looseleaf.errors import InvalidArgument, NotFound


@dataclass(frozen=True)
class Pool:
    """Where the run's GPU cells go. `embedded`: the cluster was started for this run and ends with it."""

    endpoint: str
    device: str = ""
    gpus: int = 0
    embedded: bool = False


@dataclass
class BatchResult:
    """`failure`: why the run stopped before its last cell, empty if it did not. `failed_cell`: at which cell."""

    records: list[CellRecord] = field(default_factory=list)
    kernel_pid: int | None = None
    failure: str = ""
    failed_cell: str = ""


@contextlib.contextmanager
def open_pool(endpoint: str, gpus: int | None, device: str | None) -> Iterator[Pool]:
    """The pool for a run: at `endpoint`, else the running cluster, else an embedded one in a temporary folder.

    A running cluster that has other GPUs than asked for is left alone. Raises as `LocalCluster.start`.
    """
    from looseleaf.config import ClusterConfig
    from looseleaf.local.cluster import LocalCluster

    if endpoint:
        yield Pool(endpoint.removeprefix("unix:"))
        return
    try:
        running = LocalCluster.attach(ClusterConfig().run_dir)
    except NotFound:
        running = None
    if running is not None:
        record = running.record
        if gpus in (None, record.gpus_per_host) and device in (None, "auto", record.device):
            yield Pool(str(running.kernel_socket()), record.device, record.gpus_per_host)
            return
    folder = tempfile.mkdtemp(prefix="looseleaf-run-")
    try:
        with LocalCluster.start(data=Path(folder), gpus=gpus, device=device) as cluster:
            record = cluster.record
            yield Pool(str(cluster.kernel_socket()), record.device, record.gpus_per_host, embedded=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_notebook(
    nb: Any,
    pool: Pool,
    *,
    folder: Path,
    think_s: float = 0.0,
    timeout_s: float | None = None,
    on_start: Callable[[Any, int], None] | None = None,
    on_record: Callable[[CellRecord], None] | None = None,
) -> BatchResult:
    """Runs all cells of `nb` in `folder`, outputs go into `nb`. A failing cell ends the run and is in the result."""
    client = BatchClient(
        nb, endpoint=pool.endpoint, think_s=think_s, on_start=on_start, on_record=on_record, timeout=timeout_s,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    result = BatchResult(client.records)
    try:
        client.execute()
    except CellExecutionError as error:
        result.failure = f"{error.ename}: {error.evalue}"
    except CellTimeoutError:
        result.failure = f"CELL_TIMEOUT: the cell did not end within {timeout_s:g} s"
    except DeadKernelError:
        result.failure = "KERNEL_DIED: the kernel process ended by itself; saved state is in the cluster"
    except RuntimeError as error:
        # What jupyter_client raises for a kernel that does not come up.
        if client.records or not any(word in str(error) for word in ("respond", "died")):
            raise
        result.failure = f"KERNEL_START_FAILED: {error}; see what `python -m looseleaf.kernel` says"
    result.kernel_pid = client.kernel_pid
    if result.failure:
        result.failed_cell = client.current_cell
    return result


def check_output(path: Path) -> None:
    """Raises InvalidArgument `OUTPUT_UNWRITABLE` if a file cannot be written there."""
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidArgument("OUTPUT_UNWRITABLE", f"{path} cannot be written: name a file in an existing folder")


def write_notebook(nb: Any, path: Path) -> None:
    """Writes the executed notebook, whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        nbformat.write(nb, file)  # type: ignore[no-untyped-call]
    temporary.replace(path)


def write_report(path: Path, result: BatchResult, pool: Pool) -> None:
    """Writes the JSON report, whole or not at all."""
    machine = {
        "device": pool.device, "gpus": pool.gpus, "embedded": pool.embedded, "kernel_pid": result.kernel_pid,
        "cpus": os.cpu_count(), "python": platform.python_version(), "platform": platform.platform(),
    }  # fmt: skip
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(report_of(result.records, machine), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
