"""What a one-machine cluster consists of: plain data, made once and handed to the supervisor as JSON."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from looseleaf.config import ClusterConfig
from looseleaf.errors import InvalidArgument
from looseleaf.rpc.address import socket_path

STORE: Final = "checkpoint-store"
SCHEDULER: Final = "scheduler"
FRONTEND: Final = "frontend"
DAEMON_PREFIX: Final = "daemon-"

MODULES: Final[Mapping[str, str]] = {
    STORE: "looseleaf.services.checkpoint_store",
    SCHEDULER: "looseleaf.services.scheduler",
    FRONTEND: "looseleaf.services.frontend",
    "daemon": "looseleaf.services.worker_daemon",
}

# Settings of [cluster] that every service, or every daemon, has too. Only what somebody chose for the cluster is handed
# on as a flag: a flag wins over the service's own section and variables, and a mere default must not.
SERVICE_FIELDS: Final = ("log_level",)
DAEMON_FIELDS: Final = (
    "arena_bytes", "ring_bytes", "keep_warm_s", "keep_leftovers_s", "keep_unsaved_s", "python",
)  # fmt: skip


@dataclass(frozen=True)
class ServiceSpec:
    """One process: how to start it and where it answers. Services of a lower `level` are started first."""

    name: str
    level: int
    command: list[str]
    address: str
    log: str
    host_id: str = ""


@dataclass(frozen=True)
class ClusterPlan:
    """All of a cluster. `services` is in start order; stops go the other way round."""

    cluster_id: str
    data: str
    run_dir: str
    device: str
    gpus_per_host: int
    emulated_delays: bool
    services: list[ServiceSpec]
    kernel_sockets: dict[str, str]
    start_timeout_s: float
    stop_timeout_s: float
    restart_delay_s_min: float
    restart_delay_s_max: float
    log_bytes_max: int
    log_level: str
    # Hosts that are started by demand, after which time, and where the scheduler asks for them.
    standby: list[str] = field(default_factory=list)
    host_boot_s: float = 0.0
    hosts_socket: str = ""

    @property
    def host_ids(self) -> list[str]:
        """Ids of the hosts that the cluster starts with."""
        return [spec.host_id for spec in self.services if spec.host_id and spec.host_id not in self.standby]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterPlan:
        """The plan that `to_json` gave."""
        return cls(**{**value, "services": [ServiceSpec(**spec) for spec in value["services"]]})


def make_plan(
    config: ClusterConfig, *, commands: Mapping[str, Sequence[str]] | None = None, dev: Path = Path("/dev"),
) -> ClusterPlan:
    """Decides devices, addresses and commands.

    `commands` replaces the start of the command of "checkpoint-store", "scheduler", "frontend" or "daemon" (tests).
    Raises InvalidArgument: NO_GPU_FOUND, GPUS_NOT_SHAREABLE, SOCKET_PATH_TOO_LONG.
    """
    device, gpus = resolve_devices(config, dev)
    addresses = _addresses(config)
    for address in addresses.values():
        socket_path(address)
    host_ids = [f"h{index}" for index in range(max(config.hosts, config.hosts_max))]
    standby = host_ids[config.hosts:]
    kernel_sockets = {host_id: str(config.run_dir / f"kernel-{host_id}.sock") for host_id in host_ids}
    hosts_socket = str(config.run_dir / "hosts.sock")
    if standby and device == "cuda":
        text = "several hosts on one machine cannot share real GPUs: leave --max-hosts out"
        raise InvalidArgument("GPUS_NOT_SHAREABLE", text)
    starts = {kind: [sys.executable, "-m", module] for kind, module in MODULES.items()}
    starts.update({kind: list(command) for kind, command in (commands or {}).items()})

    def spec(name: str, kind: str, level: int, data_name: str, flags: Mapping[str, Any]) -> ServiceSpec:
        common = {
            "listen": addresses[name], "run-dir": config.run_dir, "data": config.data / data_name,
            **_chosen(config, SERVICE_FIELDS),
        }
        command = [*starts[kind], *_flags({**common, **flags})]
        host_id = name.removeprefix(DAEMON_PREFIX) if kind == "daemon" else ""
        return ServiceSpec(name, level, command, addresses[name], str(config.data / "logs" / f"{name}.log"), host_id)

    by_demand = {
        "hosts-socket": hosts_socket, "hosts-min": config.hosts, "hosts-max": len(host_ids), "gpus-per-host": gpus or 1,
    } if standby else {}
    peers = {"store": addresses[STORE], "scheduler": addresses[SCHEDULER]}
    services = [
        spec(STORE, STORE, 0, "store", {}),
        spec(SCHEDULER, SCHEDULER, 1, "scheduler", by_demand),
        spec(FRONTEND, FRONTEND, 2, "frontend", peers),
    ]
    for host_id, kernel_socket in kernel_sockets.items():
        flags = {
            **peers, "frontend": addresses[FRONTEND], "host-id": host_id, "kernel-socket": kernel_socket,
            "device": device, "gpus": gpus, "emulated-delays": "on" if config.emulated_delays else "off",
            **_chosen(config, DAEMON_FIELDS),
        }
        services.append(spec(DAEMON_PREFIX + host_id, "daemon", 2, DAEMON_PREFIX + host_id, flags))
    return ClusterPlan(
        cluster_id=f"c-{secrets.token_hex(8)}", data=str(config.data), run_dir=str(config.run_dir), device=device,
        gpus_per_host=gpus, emulated_delays=config.emulated_delays, services=services, kernel_sockets=kernel_sockets,
        standby=standby, host_boot_s=config.host_boot_s, hosts_socket=hosts_socket,
        start_timeout_s=config.start_timeout_s, stop_timeout_s=config.stop_timeout_s,
        restart_delay_s_min=config.restart_delay_s_min, restart_delay_s_max=config.restart_delay_s_max,
        log_bytes_max=config.log_bytes_max, log_level=config.log_level,
    )


def resolve_devices(config: ClusterConfig, dev: Path = Path("/dev")) -> tuple[str, int]:
    """Device kind and GPUs per host."""
    found = count_gpus(dev)
    device = config.device
    if device == "auto":
        device = "none" if config.gpus == 0 else "cuda" if found else "emulated"
    if device == "none":
        return "none", 0
    if device == "emulated":
        return "emulated", 1 if config.gpus is None else config.gpus
    gpus = found if config.gpus is None else config.gpus
    if gpus > found or found == 0:
        raise InvalidArgument(
            "NO_GPU_FOUND",
            f"{gpus or 1} GPU(s) wanted, {found} found in {dev}: install the NVIDIA driver, or use --device emulated",
        )
    if config.hosts > 1:
        text = "several hosts on one machine cannot share real GPUs: use --hosts 1"
        raise InvalidArgument("GPUS_NOT_SHAREABLE", text)
    return "cuda", gpus


def count_gpus(dev: Path = Path("/dev")) -> int:
    """NVIDIA devices that the kernel driver shows."""
    return sum(1 for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


def child_environment(cluster_id: str) -> dict[str, str]:
    """The environment of all processes of a cluster; LOOSELEAF_CLUSTER_ID marks every descendant."""
    import importlib.metadata

    env = {**os.environ, "LOOSELEAF_CLUSTER_ID": cluster_id}
    parent = Path(__file__).resolve().parents[2]
    try:
        importlib.metadata.distribution("looseleaf")
    except importlib.metadata.PackageNotFoundError:
        # A checkout that was not installed: children must find the package whatever their folder is.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(parent), os.environ.get("PYTHONPATH", "")]))
    return env


def _addresses(config: ClusterConfig) -> dict[str, str]:
    hosts = range(max(config.hosts, config.hosts_max))
    names = [STORE, SCHEDULER, FRONTEND, *(f"{DAEMON_PREFIX}h{index}" for index in hosts)]
    if not config.tcp:
        return {name: f"unix:{config.run_dir}/{name}.sock" for name in names}
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in names]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return {name: f"127.0.0.1:{probe.getsockname()[1]}" for name, probe in zip(names, probes, strict=True)}
    finally:
        for probe in probes:
            probe.close()


def _chosen(config: ClusterConfig, names: Sequence[str]) -> dict[str, Any]:
    """Flags of the fields that a file, a variable or the command line has set."""
    return {name.replace("_", "-"): getattr(config, name) for name in names if name in config.model_fields_set}


def _flags(values: Mapping[str, Any]) -> list[str]:
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]
