"""Settings of the services and the one-machine cluster.

One frozen model per process kind, and the only place that says what its settings are. Order of precedence, highest
first: flags (keyword arguments), `LOOSELEAF_<SECTION>_*` variables (`LOOSELEAF_*` for the cluster), `[section]` of the
project's `looseleaf.toml`, of the user's, then the defaults here. An unknown TOML key is an error. Every limit is a
field with its unit last; every field is also a flag (`lease_ttl_ms` is `--lease-ttl-ms`) of its service, or of
`looseleaf up`. Programs load a model with `looseleaf.config_load.load`, which says where a wrong value stands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from looseleaf.config_files import ConfigError, read_section
from looseleaf.kernel_config import KernelConfig, default_data_dir, default_run_dir
from looseleaf.units import GIB, MIB

__all__ = [
    "ClusterConfig", "ConfigError", "DaemonConfig", "FrontendConfig", "KernelConfig", "SchedulerConfig",
    "ServiceConfig", "StoreConfig", "default_data_dir", "default_run_dir",
]

# Packages that most GPU cells of notebooks use (paper §2.4.2); a missing one is skipped.
BASE_IMPORTS = ("numpy", "pandas", "matplotlib.pyplot", "torch", "torch.nn.functional", "torch.utils.data")

DeviceKind = Literal["cuda", "emulated", "none"]
Durability = Literal["staged", "disk"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _TomlSection(PydanticBaseSettingsSource):
    """`[section]` of the TOML files as a settings source."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise AssertionError("the whole section is read at once")

    def __call__(self) -> dict[str, Any]:
        section = self.settings_cls.section  # type: ignore[attr-defined]
        return read_section(section)


class _Section(BaseSettings):
    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="LOOSELEAF_")
    section: ClassVar[str] = ""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _TomlSection(settings_cls)


class ServiceConfig(_Section):
    """What every service has."""

    # Field names whose default is a socket in the run folder: field -> file name.
    sockets: ClassVar[dict[str, str]] = {}

    listen: str = Field(default="", description="gRPC address: unix:/abs/path or 127.0.0.1:port (port 0 picks one)")
    run_dir: Path = Field(default_factory=default_run_dir, description="folder of the sockets, mode 0700")
    data: Path = Field(default_factory=default_data_dir, description="folder of the service's data")
    log_level: LogLevel = Field(default="info", description="least severe events to log")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="Prometheus port; 0 is off")
    metrics_host: str = Field(default="127.0.0.1", description="address of the Prometheus port")
    allow_remote_tcp: bool = Field(default=False, description="allow a TCP address that other machines can reach")
    shutdown_grace_s: float = Field(default=5.0, ge=0, description="time for running calls after SIGTERM")
    # A frame of the worker protocol (32 MiB) must fit: an output that does not would cost its cell.
    message_bytes_max: int = Field(default=40 * MIB, ge=33 * MIB, description="largest gRPC message")
    executor_threads_max: int = Field(default=4, ge=1, description="threads for blocking work")

    @model_validator(mode="before")
    @classmethod
    def _default_addresses(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        run_dir = values.get("run_dir") or default_run_dir()
        addresses = {field: f"unix:{run_dir}/{file_name}" for field, file_name in cls.sockets.items()}
        return {**addresses, **{key: value for key, value in values.items() if value != "" or key not in addresses}}


class StoreConfig(ServiceConfig):
    """Settings of the checkpoint store."""

    model_config = SettingsConfigDict(env_prefix="LOOSELEAF_STORE_")
    section: ClassVar[str] = "store"
    sockets: ClassVar[dict[str, str]] = {"listen": "checkpoint-store.sock"}

    sessions_max: int = Field(default=10_000, ge=1, description="sessions that may exist")
    versions_kept_max: int = Field(default=20, ge=2, description="newest versions kept, beside the last durable one")
    versions_kept_s: float = Field(
        default=0, ge=0, description="how long a version is kept after a newer one took its place; 0: for any time")
    version_use_s: float = Field(
        default=600, ge=0, description="how long a version that was read, as by a worker or a checkout, is not dropped")
    manifest_bytes_max: int = Field(default=8 * MIB, ge=MIB, description="largest manifest")
    stored_bytes_max: int = Field(default=256 * GIB, ge=MIB, description="region and unit bytes on the store's disk")
    tenants_max: int = Field(default=1_000, ge=0, description="tenants beside the default one")
    tenant_bytes_max: int = Field(
        default=0, ge=0, description="region and unit bytes of one tenant; 0: as many as of all")
    session_bytes_max: int = Field(
        default=0, ge=0, description="bytes of one session's variables, what they share counted once; 0: any number")
    streams_waiting_max: int = Field(
        default=256, ge=0, description="uploads, and reads, that may wait for their turn; those beyond are refused")
    compress_units: bool = Field(
        default=True, description="compress small objects where it pays, if the package zstandard is installed")
    disk_free_bytes_min: int = Field(default=1 * GIB, ge=0, description="disk that writes must leave free")
    garbage_interval_s: float = Field(default=300.0, gt=0, description="time between garbage collections")
    orphan_grace_s: float = Field(default=600.0, ge=0, description="life of bytes that no version names yet")
    scrub_interval_s: float = Field(
        default=86_400.0, gt=0, description="time between two readings of all bytes, which find what the disk damaged")
    database: Literal["rocksdb-py", "rocksdict"] = Field(default="rocksdb-py", description="binding of the index")
    memory_entries_max: int = Field(default=10_000, ge=1, description="remembered results of mutating requests")


class SchedulerConfig(ServiceConfig):
    """Settings of the scheduler."""

    model_config = SettingsConfigDict(env_prefix="LOOSELEAF_SCHEDULER_")
    section: ClassVar[str] = "scheduler"
    sockets: ClassVar[dict[str, str]] = {"listen": "scheduler.sock"}

    lease_ttl_ms: int = Field(default=10_000, ge=100, description="life of a lease without renewal")
    suspect_after_s: float = Field(default=3.0, gt=0, description="silence after which a host gets no new work")
    dead_after_s: float = Field(default=10.0, gt=0, description="silence after which a host counts as lost")
    first_round_s: float = Field(default=3.0, ge=0, description="time after a start in which known hosts may report")
    start_timeout_s: float = Field(default=30.0, gt=0, description="life of a lease under which nothing starts")
    grant_timeout_s: float = Field(default=5.0, gt=0, description="limit of a daemon's answer to an order")
    queued_runs_max: int = Field(default=10_000, ge=1, description="runs that may wait")
    queued_runs_per_session_max: int = Field(default=64, ge=1, description="runs of one session that may wait")
    prepare_timeout_s: float = Field(default=30.0, gt=0, description="limit of one preparation")
    preparations_per_host_max: int = Field(default=8, ge=1, description="prepared, never used workers on a host")
    prepare_up_to: Literal["host_ready", "context_ready", "device_ready"] = Field(
        default="context_ready",
        description="how far cells are prepared before Run: in memory, with a context open on a GPU, or with their data"
        " on a GPU that nobody needs",
    )
    speculation_expiry_s: float = Field(default=20.0, gt=0, description="life of a preparation without keystrokes")
    journal_executions_max: int = Field(default=20_000, ge=100, description="ended executions kept in the journal")
    database: Literal["rocksdb-py", "rocksdict"] = Field(default="rocksdb-py", description="binding of the journal")
    tick_s: float = Field(default=0.25, gt=0, description="time between looks at limits of time")
    tenant_weights: dict[str, float] = Field(
        default_factory=dict, description="tenants whose turn comes more or less often than others', which weigh 1")
    tenant_gpus_max: int = Field(default=0, ge=0, description="GPUs that one tenant's cells may hold; 0: all")
    hosts_socket: Path | None = Field(default=None, description="who starts and ends hosts on this machine")
    hosts_min: int = Field(default=1, ge=0, description="hosts that there are at least")
    hosts_max: int = Field(default=0, ge=0, description="hosts that there are at most; 0: none is started or ended")
    gpus_per_host: int = Field(default=8, ge=1, description="GPUs of a host that is started")
    headroom_hosts: int = Field(default=1, ge=0, description="hosts beyond what demand needs")
    headroom_share: float = Field(default=0.0, ge=0, description="part of the demand to have beyond it")
    demand_peak_s: float = Field(default=300.0, ge=0, description="time whose highest demand counts")
    provision_wait_s: float = Field(
        default=30.0, ge=0, description="time after a start in which hosts may come before more are started")
    power_off_after_s: float = Field(default=120.0, ge=0, description="life of a surplus before it is drained")
    boot_timeout_s: float = Field(default=600.0, gt=0, description="limit of a host's start")
    run_log: Path | None = Field(
        default=None, description="file of a line for each GPU cell, without its text, for `looseleaf simulate`")
    run_log_bytes_max: int = Field(default=64 * MIB, ge=MIB, description="size at which the run log moves to *.1")

    @model_validator(mode="after")
    def _ttl_within_silence(self) -> SchedulerConfig:
        # A daemon must stop starting cells before the scheduler gives its GPUs to others.
        if self.lease_ttl_ms > self.dead_after_s * 1000:
            raise ValueError("lease_ttl_ms must not exceed dead_after_s")
        return self


class FrontendConfig(ServiceConfig):
    """Settings of the recipe frontend."""

    model_config = SettingsConfigDict(env_prefix="LOOSELEAF_FRONTEND_")
    section: ClassVar[str] = "frontend"
    sockets: ClassVar[dict[str, str]] = {
        "listen": "frontend.sock", "store": "checkpoint-store.sock", "scheduler": "scheduler.sock",
    }

    store: str = Field(default="", description="address of the checkpoint store")
    scheduler: str = Field(default="", description="address of the scheduler")
    sessions_max: int = Field(default=1_000, ge=1, description="sessions whose logs and facts are held")
    log_runs_max: int = Field(default=10_000, ge=1, description="runs held per session")
    source_bytes_max: int = Field(default=1 * MIB, ge=1024, description="largest cell text")
    manifest_timeout_s: float = Field(default=5.0, gt=0, description="limit of one manifest read")


class DaemonConfig(ServiceConfig):
    """Settings of a host's worker daemon."""

    model_config = SettingsConfigDict(env_prefix="LOOSELEAF_DAEMON_")
    section: ClassVar[str] = "daemon"
    sockets: ClassVar[dict[str, str]] = {
        "store": "checkpoint-store.sock", "scheduler": "scheduler.sock", "frontend": "frontend.sock",
    }

    host_id: str = Field(default="h0", description="the host's id, unique in the pool")
    advertise: str = Field(default="", description="address at which others reach the daemon; default: listen")
    store: str = Field(default="", description="address of the checkpoint store")
    scheduler: str = Field(default="", description="address of the scheduler")
    frontend: str = Field(default="", description="address of the frontend")
    kernel_socket: Path = Field(default=Path(), description="socket for kernels; default kernel-<host>.sock")
    tenant: str = Field(
        default="default", pattern="^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$",
        description="person or team whose sessions this host serves: the boundary of sharing and quotas at the store; "
        "the hosts of one session have the same")
    device: DeviceKind = Field(default="none", description="what its GPUs are")
    gpus: int = Field(default=0, ge=0, le=64, description="number of GPUs to lend")
    cell_gpus: int | None = Field(
        default=None, ge=0, le=1,
        description="GPUs that cells of this host's kernels see; default 1 if it lends any, 1 for a host without in a "
        "pool that has some")
    gpu_memory_bytes: int = Field(default=16 * GIB, ge=MIB, description="memory of an emulated GPU")
    emulated_delays: bool = Field(default=True, description="imitate the times of a real attach")
    arena_bytes: int = Field(default=4 * GIB, ge=2 * MIB, description="limit of the host arena")
    arena_high_percent: int = Field(
        default=90, ge=1, le=100,
        description="share of the arena that saves may fill; above it clean regions go and new saves wait")
    arena_low_percent: int = Field(
        default=75, ge=1, le=100, description="share of the arena down to which clean regions go then")
    arena_cache_bytes: int | None = Field(
        default=None, ge=0,
        description="clean regions that nobody uses, kept for later restores; default: up to the low mark")
    durability: Durability = Field(
        default="disk",
        description="disk: each version goes to the store's disk at once; staged: when the arena runs short of room "
        "or the daemon stops, so that the loss of the host costs more versions")
    ring_bytes: int = Field(default=256 * MIB, ge=2 * MIB, description="limit of one connection's ring")
    keep_warm_s: float = Field(default=300.0, ge=0, description="life of a completed worker")
    keep_leftovers_s: float = Field(
        default=60.0, ge=0, description="how long a GPU is held for threads and processes that a cell left running")
    keep_unsaved_s: float = Field(
        default=60.0, ge=0, description="how long a worker is kept for variables that cannot be saved; 0: not at all")
    python: str = Field(default=sys.executable, description="interpreter of zygotes and workers")
    base_imports: tuple[str, ...] = Field(default=BASE_IMPORTS, description="head set that zygotes import, a JSON list")
    zygotes_max: int = Field(
        default=16, ge=0, le=256, description="zygotes besides the base, for imports that several cells share; 0: none")
    zygote_memory_bytes: int = Field(
        default=0, ge=0, description="memory of all zygotes together; 0: a quarter of the host's")
    hash_seed: str = Field(default="0", description="PYTHONHASHSEED of the pool's kernels and workers")
    workers_max: int = Field(default=32, ge=1, description="workers at once")
    worker_user: str = Field(
        default="",
        description="whom workers run as, by name or number, where the daemon is root's; the kernel socket is given to "
        "the same user; default: as the daemon")
    worker_memory_bytes: int = Field(
        default=0, ge=0, description="memory that one worker may have of its own; one that takes more is ended; 0: any")
    worker_open_files_max: int = Field(default=0, ge=0, description="open files of a worker; 0: as the daemon")
    worker_processes_max: int = Field(
        default=0, ge=0, description="processes and threads of a worker's user on the host; 0: as the daemon")
    kernels_max: int = Field(default=64, ge=1, description="connected kernels")
    heartbeat_interval_s: float = Field(default=1.0, gt=0, description="time between heartbeats")
    zygote_start_timeout_s: float = Field(default=120.0, gt=0, description="limit of a zygote's start")
    prepare_timeout_s: float = Field(default=300.0, gt=0, description="limit of bringing a worker's state up to date")
    save_timeout_s: float = Field(default=600.0, gt=0, description="limit of one save after a cell's end")

    @model_validator(mode="after")
    def _marks_in_order(self) -> DaemonConfig:
        if self.arena_low_percent > self.arena_high_percent:
            raise ValueError("arena_low_percent must not exceed arena_high_percent")
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_host_sockets(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        run_dir = values.get("run_dir") or default_run_dir()
        host_id = values.get("host_id", "h0")
        filled = dict(values)
        filled["listen"] = values.get("listen") or f"unix:{run_dir}/daemon-{host_id}.sock"
        filled["kernel_socket"] = values.get("kernel_socket") or f"{run_dir}/kernel-{host_id}.sock"
        return filled


class ClusterConfig(_Section):
    """Settings of the one-machine cluster; variables are `LOOSELEAF_*`."""

    section: ClassVar[str] = "cluster"

    data: Path = Field(default_factory=default_data_dir, description="folder of all data and logs")
    run_dir: Path = Field(default_factory=default_run_dir, description="folder of the sockets")
    hosts: int = Field(default=1, ge=1, le=16, description="worker daemons")
    hosts_max: int = Field(
        default=0, ge=0, le=16, description="worker daemons at most: more are started and ended by demand; 0: `hosts`")
    host_boot_s: float = Field(default=0.0, ge=0, description="imitated time of the start of a host by demand")
    gpus: int | None = Field(default=None, ge=0, le=64, description="GPUs per host; default all, or 1 emulated")
    device: Literal["auto", "cuda", "emulated", "none"] = Field(default="auto", description="auto is cuda if there is")
    tcp: bool = Field(default=False, description="gRPC on loopback TCP instead of Unix sockets")
    log_level: LogLevel = Field(default="info", description="log level of the services")
    emulated_delays: bool = Field(default=True, description="imitate the times of a real attach")
    arena_bytes: int = Field(default=4 * GIB, ge=2 * MIB, description="arena limit of each host")
    ring_bytes: int = Field(default=256 * MIB, ge=2 * MIB, description="ring limit of each connection")
    keep_warm_s: float = Field(default=300.0, ge=0, description="life of a completed worker")
    keep_leftovers_s: float = Field(
        default=60.0, ge=0, description="how long a GPU is held for threads and processes that a cell left running")
    keep_unsaved_s: float = Field(
        default=60.0, ge=0, description="how long a worker is kept for variables that cannot be saved; 0: not at all")
    python: str = Field(default=sys.executable, description="interpreter of zygotes and workers")
    start_timeout_s: float = Field(default=120.0, gt=0, description="limit of a start until the pool is complete")
    stop_timeout_s: float = Field(default=15.0, gt=0, description="limit of each service's stop before it is killed")
    restart_delay_s_min: float = Field(default=0.2, ge=0, description="wait before the first restart of a service")
    restart_delay_s_max: float = Field(default=10.0, ge=0, description="longest wait before a restart")
    log_bytes_max: int = Field(default=32 * MIB, ge=MIB, description="size at which a log moves to *.log.1")

    @model_validator(mode="before")
    @classmethod
    def _run_dir_of_data(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("data") and not values.get("run_dir"):
            return {**values, "run_dir": Path(str(values["data"])).expanduser().absolute() / "run"}
        return values

    @model_validator(mode="after")
    def _absolute(self) -> ClusterConfig:
        for name in ("data", "run_dir"):
            object.__setattr__(self, name, Path(getattr(self, name)).expanduser().absolute())
        return self
