"""Every number of a simulation, read from TOML: `workloads/w1.toml` says what each means.

A variant names its `base` and what differs. Settings that nobody knows are refused, so that no misspelt one is ignored.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from looseleaf.errors import InvalidArgument
from looseleaf.sim.limits import checked_limits
from looseleaf.units import GIB

WORKLOADS: Final = ("w1", "long", "dense", "fast", "churn", "hetero", "day")
# The 95th percentile of the standard normal distribution.
Z95: Final = 1.6449
ABLATIONS: Final = ("import-cache", "closures", "speculation", "context-ready", "prediction")

Section = TypeVar("Section")


@dataclass(frozen=True, slots=True)
class Workload:
    """What people do."""

    hours: float
    warmup_hours: float
    arrival_s: float
    gap_min_s: float
    gap_extra_s: float
    pause_share: float
    pause_s: float
    edit_median_s: float
    edit_sigma: float
    gpu_share_alpha: float
    gpu_share_beta: float
    gpu_run_median_s: float
    gpu_run_mean_s: float
    gpu_run_max_s: float
    cpu_run_median_s: float
    cpu_run_sigma: float
    cpu_run_max_s: float
    abandoned_share: float
    closure_median_gib: float
    closure_p95_gib: float
    closure_max_gib: float
    two_gpu_share: float
    eight_gpu_share: float
    type_bound_share: float
    type_bound_gib: float
    day_swing: float
    day_hours: float

    @property
    def gpu_run_sigma(self) -> float:
        """Of the lognormal with this median and mean."""
        return math.sqrt(2 * math.log(self.gpu_run_mean_s / self.gpu_run_median_s))

    @property
    def closure_sigma(self) -> float:
        """Of the lognormal with this median and 95th percentile."""
        return math.log(self.closure_p95_gib / self.closure_median_gib) / Z95

    @property
    def measured_s(self) -> float:
        """The time that figures are of."""
        return (self.hours - self.warmup_hours) * 3600


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How long the parts of a start take. `attach_s`: of context and copy together. `without`: see ABLATIONS."""

    prepare_median_s: float
    prepare_p95_s: float
    prepare_max_s: float
    prepare_import_share: float
    refresh_s: float
    retarget_share: float
    save_median_s: float
    save_sigma: float
    save_max_s: float
    debounce_s: float
    edit_again_s: float
    predict_after_s: float
    prediction_right: float
    context_s: float
    copy_gb_per_s: float
    messages_s: float
    naive_factor: float
    closure_share: float
    attach_s: float | None = None
    without: frozenset[str] = frozenset()

    @property
    def prepare_sigma(self) -> float:
        """Of the lognormal with this median and 95th percentile."""
        return math.log(self.prepare_p95_s / self.prepare_median_s) / Z95

    @property
    def prepare_factor(self) -> float:
        """How many times longer a preparation takes without the parts that are left out.

        Without closures the whole state is fetched; without both it is the naive factor: that gives the import cache's.
        """
        whole_state = (1 - self.prepare_import_share) / self.closure_share
        imports = self.naive_factor - whole_state if "import-cache" in self.without else self.prepare_import_share
        return imports + (whole_state if "closures" in self.without else 1 - self.prepare_import_share)

    def attach_parts_s(self, closure_bytes: int) -> tuple[float, float]:
        """Seconds to open the context, and to copy the closure."""
        if self.attach_s is not None:
            context_s = min(self.context_s, self.attach_s)
            return context_s, self.attach_s - context_s
        moved = closure_bytes / self.closure_share if "closures" in self.without else closure_bytes
        return self.context_s, moved / (self.copy_gb_per_s * 1e9)


@dataclass(frozen=True, slots=True)
class Hosts:
    """What GPUs come in."""

    gpus: int
    boot_s: float
    boot_spread: float
    memory_gib: tuple[float, ...]
    tick_s: float
    off_delay_s: float

    def memory_bytes(self, number: int, least_bytes: int = 0) -> int:
        """Of each GPU of the host that is started as `number`, from 0: of the next kind with `least_bytes`, if any."""
        turn = number % len(self.memory_gib)
        kinds = [int(gib * GIB) for gib in (*self.memory_gib[turn:], *self.memory_gib[:turn])]
        return next((memory for memory in kinds if memory >= least_bytes), kinds[0])


@dataclass(frozen=True, slots=True)
class NotebookOs:
    """Settings of `policies.notebookos`."""

    hosts_min: int
    replicas: int
    subscription_max: float
    demand_factor: float
    spare_hosts: int
    bind_median_s: float
    bind_sigma: float
    migrate_median_s: float
    migrate_sigma: float


@dataclass(frozen=True, slots=True)
class Modal:
    """Settings of `policies.modal`."""

    idle_s: float
    boot_s: float
    recompute_median_s: float
    recompute_sigma: float
    recompute_max_s: float


@dataclass(frozen=True, slots=True)
class Naive:
    """Settings of `policies.naive`."""

    save_factor: float
    save_max_s: float


@dataclass(frozen=True, slots=True)
class Model:
    """All of it; `name` is the workload's. `limits`: of the scheduler, where they differ from `sim_limits`."""

    name: str
    workload: Workload
    mechanism: Mechanism
    hosts: Hosts
    notebookos: NotebookOs
    modal: Modal
    naive: Naive
    limits: tuple[tuple[str, Any], ...] = ()

    def named(self, name: str) -> Model:
        """The same numbers under another name."""
        return replace(self, name=name)

    def changed(
        self, *, hours: float | None = None, attach_s: float | None = None, without: frozenset[str] = frozenset(),
        limits: Mapping[str, Any] | None = None,
    ) -> Model:
        """The model with another length, attach time, limits, or without some parts; what is not given stays.

        Raises `ABLATION_UNKNOWN` and `LIMIT_UNKNOWN`.
        """
        unknown = without - set(ABLATIONS)
        if unknown:
            raise InvalidArgument(
                "ABLATION_UNKNOWN", f"{min(unknown)!r} cannot be left out; these can: {', '.join(ABLATIONS)}.")
        workload = self.workload
        if hours is not None:
            workload = replace(workload, hours=hours, warmup_hours=min(workload.warmup_hours, hours / 2))
        mechanism = replace(self.mechanism, without=self.mechanism.without | without)
        if attach_s is not None:
            mechanism = replace(mechanism, attach_s=attach_s)
        limited = dict(self.limits) | checked_limits(limits or {})
        return replace(self, workload=workload, mechanism=mechanism, limits=tuple(sorted(limited.items())))


def load_model(name: str) -> Model:
    """The model of one of WORKLOADS. Raises InvalidArgument `WORKLOAD_UNKNOWN`."""
    if name not in WORKLOADS:
        raise InvalidArgument(
            "WORKLOAD_UNKNOWN", f"There is no workload {name!r}: give {', '.join(WORKLOADS)}, or a file.",
            workload=name)
    return _model(name, _shipped(name))


def read_model(path: Path) -> Model:
    """The model of a TOML file; its `base` is one of WORKLOADS. Raises InvalidArgument `WORKLOAD_MALFORMED`."""
    try:
        return _model(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _malformed(f"{path.name} is no TOML: {error}") from error


def _shipped(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("looseleaf.sim") / "workloads" / f"{name}.toml").read_text(encoding="utf-8"))


def _model(name: str, tables: dict[str, Any]) -> Model:
    merged = _with_base(tables)
    unknown = merged.keys() - {"workload", "mechanism", "hosts", "notebookos", "modal", "naive", "limits"}
    if unknown:
        raise _malformed(f"no section is called {min(unknown)}")
    return Model(
        name, _section(Workload, "workload", merged), _section(Mechanism, "mechanism", merged),
        _section(Hosts, "hosts", merged), _section(NotebookOs, "notebookos", merged), _section(Modal, "modal", merged),
        _section(Naive, "naive", merged), tuple(sorted(checked_limits(merged.get("limits", {})).items())),
    )


def _with_base(tables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    base = tables.pop("base", None)
    if base is not None and base not in WORKLOADS:
        raise _malformed(f"its base {base!r} is none of {', '.join(WORKLOADS)}")
    merged = _with_base(_shipped(base)) if base is not None else {}
    for section, values in tables.items():
        if not isinstance(values, Mapping):
            raise _malformed(f"{section} is no section")
        merged[section] = merged.get(section, {}) | dict(values)
    return merged


def _section(kind: type[Section], name: str, sections: Mapping[str, Mapping[str, Any]]) -> Section:
    values = sections.get(name, {})
    known = {field.name for field in fields(kind)} - {"attach_s", "without"}  # type: ignore[arg-type]
    if values.keys() != known:
        odd = min(values.keys() ^ known)
        raise _malformed(f"[{name}] {'lacks' if odd in known else 'has no setting'} {odd}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _malformed(why: str) -> InvalidArgument:
    return InvalidArgument("WORKLOAD_MALFORMED", f"The workload cannot be read: {why}.")
