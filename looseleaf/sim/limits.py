"""The scheduler's limits in a simulation: the service's, but for what simulated time asks for and what is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.limits import Limits

HEARTBEAT_S: Final = 30.0
_DEFAULTS: Final = Limits()
_NAMES: Final = frozenset(field.name for field in fields(Limits))


def sim_limits(gpus_per_host: int, boot_s: float, changed: Mapping[str, Any]) -> Limits:
    """The service's defaults but for what follows, and then as `changed` says (`checked_limits`).

    Times fit rare heartbeats and starts without an import cache. Hosts follow the peak of the last 5 minutes and a
    fifth, without a host in reserve. All sessions are of one tenant, which may use the whole pool. Host memory bounds
    prepared workers: 8 GPUs' host keeps 64 of 0.5 GiB in the median. Workers may be prepared up to device_ready.
    """
    usual = Limits(
        heartbeat_suspect_s=3 * HEARTBEAT_S, heartbeat_dead_s=10 * HEARTBEAT_S, start_timeout_s=3600.0,
        news_at_once_max=0, hosts_min=1, hosts_max=10_000, headroom_hosts=0, headroom_share=0.2,
        gpus_per_host=gpus_per_host, boot_timeout_s=10 * boot_s, prepare_stage_max=WorkerStage.DEVICE_READY,
        tenant_speculation_share=1.0, prepared_max_per_host=64, stop_heartbeats=0,
    )
    return replace(usual, **changed)


def checked_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of fields of `Limits`, each of its field's kind; a stage is given as a word such as host_ready.

    Raises InvalidArgument `LIMIT_UNKNOWN`.
    """
    return {name: _checked(name, value) for name, value in given.items()}


def limits_of_words(words: Sequence[str]) -> dict[str, Any]:
    """The same from words such as `headroom_share=0.1`."""
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            given[name] = float(text)
        except ValueError:
            given[name] = text
    return checked_limits(given)


def _checked(name: str, value: Any) -> Any:
    usual = getattr(_DEFAULTS, name) if name in _NAMES else None
    if isinstance(usual, WorkerStage) and isinstance(value, WorkerStage):
        return value
    if isinstance(usual, WorkerStage) and isinstance(value, str) and value.upper() in WorkerStage.__members__:
        return WorkerStage[value.upper()]
    number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    if number and isinstance(usual, float):
        return float(value)
    # A WorkerStage is a number too, and is given by its word only.
    if number and type(usual) is int and value == int(value):
        return int(value)
    raise InvalidArgument(
        "LIMIT_UNKNOWN", f"{name}={value} is no limit of the scheduler with a value of its kind, such as"
        " headroom_share=0.1 or prepare_stage_max=host_ready.", limit=name)  # fmt: skip
