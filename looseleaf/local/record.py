"""`cluster.json`: how everybody finds a running cluster; and which processes belong to one."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_origin, get_type_hints

import psutil

from looseleaf.errors import Corrupt

FILE_NAME: Final = "cluster.json"
FORMAT: Final = 1
CLUSTER_ID_VARIABLE: Final = "LOOSELEAF_CLUSTER_ID"


@dataclass
class ServiceRecord:
    """One service as the supervisor sees it.

    `state` is starting, serving, unresponsive, waiting, stopped, or standby: a host that demand has not asked for.
    """

    address: str
    log: str
    pid: int = 0
    restarts: int = 0
    state: str = "stopped"
    last_exit: str = ""


@dataclass
class ClusterRecord:
    """The whole; `state` is starting, ready or stopping. `supervisor_started_s` tells a reused pid from ours."""

    cluster_id: str
    supervisor_pid: int
    supervisor_started_s: float
    state: str
    data: str
    run_dir: str
    device: str
    gpus_per_host: int
    hosts: list[str]
    kernel_sockets: dict[str, str]
    started_unix_ms: int
    services: dict[str, ServiceRecord] = field(default_factory=dict)
    # What each service may take to stop before it is killed.
    stop_timeout_s: float = 15.0
    # Virtual GPUs imitate the times of a real attach.
    emulated_delays: bool = True
    format: int = FORMAT

    @property
    def alive(self) -> bool:
        """Its supervisor runs."""
        return is_process(self.supervisor_pid, self.supervisor_started_s)


_Record = TypeVar("_Record", ServiceRecord, ClusterRecord)


def write_record(run_dir: Path, record: ClusterRecord) -> None:
    """Replaces the file atomically: a reader sees the old or the new one, whole."""
    target = run_dir / FILE_NAME
    temporary = target.with_suffix(".json.new")
    temporary.write_text(json.dumps(asdict(record), indent=1))
    temporary.chmod(0o600)
    temporary.replace(target)


def read_record(run_dir: Path) -> ClusterRecord | None:
    """The record in `run_dir`, None if there is none; raises Corrupt CLUSTER_RECORD_CORRUPT."""
    path = run_dir / FILE_NAME
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        services = {name: _checked(ServiceRecord(**service)) for name, service in value.pop("services").items()}
        return _checked(ClusterRecord(services=services, **value))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Corrupt(
            "CLUSTER_RECORD_CORRUPT",
            f"{path} cannot be read: see that no `looseleaf` process runs, then delete the file. Saved state is safe.",
        ) from error


def _checked(record: _Record) -> _Record:
    """The record; raises TypeError if a field is of another kind: a pid that is no number must not be looked for."""
    for name, kind in get_type_hints(type(record)).items():
        value, wanted = getattr(record, name), get_origin(kind) or kind
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return record


def remove_record(run_dir: Path) -> None:
    """Removes the file, if it is there."""
    (run_dir / FILE_NAME).unlink(missing_ok=True)


def process_started_s(pid: int) -> float:
    """When the process began, seconds since 1970; 0 if there is none."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return 0.0


def is_process(pid: int, started_s: float) -> bool:
    """Whether the process with that pid and start runs (a zombie does not)."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cluster_processes(cluster_id: str) -> list[psutil.Process]:
    """Every process of ours that descends from the cluster's supervisor, however it was re-parented."""
    mark = f"{CLUSTER_ID_VARIABLE}={cluster_id}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0") and process.pid != os.getpid() and _is_live(process):
            found.append(process)
    return found


def _is_live(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def leftover_sockets(run_dir: Path) -> list[Path]:
    """Socket files in `run_dir`."""
    return sorted(path for path in run_dir.glob("*.sock") if path.is_socket())


def leftover_memory(cluster_id: str, shm: Path = Path("/dev/shm")) -> list[Path]:
    """Named shared memory of the cluster; its arenas are nameless and end with their processes."""
    return sorted(shm.glob(f"looseleaf-{cluster_id}-*"))
