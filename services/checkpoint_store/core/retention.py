"""Which versions stay, and what a session falls back to when a host is lost. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """What the rules below need to know of a kept version."""

    version: int
    durable: bool
    execution_id: str


def versions_to_drop(kept: Sequence[KeptVersion], keep_last: int) -> tuple[int, ...]:
    """The versions that retention drops, ascending: all but the last `keep_last` (>= 1) and the last durable one.

    The newest version is the session's head and always stays. `kept` is ascending.
    """
    old = kept[: max(0, len(kept) - keep_last)]
    last_durable = max((entry.version for entry in kept if entry.durable), default=0)
    return tuple(entry.version for entry in old if entry.version != last_durable)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What a session loses: the versions to drop, its new head (0 for none), the executions that were lost with them.

    `lost_execution_ids` is oldest first and empty if the head itself survives.
    """

    drops: frozenset[int]
    version: int
    lost_execution_ids: tuple[str, ...]


def plan_fallback(
    kept: Sequence[KeptVersion], lost: Iterable[int], dropped_executions: Sequence[tuple[int, str]] = ()
) -> Fallback | None:
    """The fall to the newest version that lost nothing; None if no kept version is in `lost`.

    A durable version never is in `lost`, so the session never falls below its last durable one. `kept` is ascending;
    `dropped_executions` are (version, execution) of versions that retention dropped since the last durable one.
    """
    gone = set(lost)
    if not any(entry.version in gone for entry in kept):
        return None
    survivors = [entry.version for entry in kept if entry.version not in gone]
    head = survivors[-1] if survivors else 0
    executions = sorted([*dropped_executions, *((entry.version, entry.execution_id) for entry in kept)])
    # What lies above the new head was built on what is lost, or is what is lost.
    drops = frozenset(entry.version for entry in kept if entry.version in gone or entry.version > head)
    return Fallback(drops, head, tuple(execution_id for version, execution_id in executions if version > head))
