"""Which versions stay, and what a session falls back to when a host is lost. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """What the rules below need to know of a kept version."""

    version: int
    durable: bool
    execution_id: str
    created_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class Retention:
    """How many versions of a session stay (>= 1); how long each stays once a newer one took its place (0: for ever)."""

    keep_last: int
    keep_ms: int = 0


def versions_to_drop(
    kept: Sequence[KeptVersion], rule: Retention, now_unix_ms: int = 0, in_use: Collection[int] = ()
) -> tuple[int, ...]:
    """The versions that retention drops, ascending: those beyond the last `keep_last`, and those of an age.

    The newest version, which is the session's head, the last durable one and those `in_use` always stay. The age counts
    from the next kept version on: what was the state for days can be gone back to when it has changed. `kept` is
    ascending.
    """
    last_durable = max((entry.version for entry in kept if entry.durable), default=0)
    beyond = len(kept) - rule.keep_last
    drops = []
    for index, (entry, later) in enumerate(pairwise(kept)):
        is_old = rule.keep_ms > 0 and now_unix_ms - later.created_unix_ms >= rule.keep_ms
        if (index < beyond or is_old) and entry.version != last_durable and entry.version not in in_use:
            drops.append(entry.version)
    return tuple(drops)


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
