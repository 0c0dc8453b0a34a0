"""Where no more hosts may be started: one of a kind that does not help goes, so that one that does can come.

At most one at a time, and for the run whose turn comes first; it is not taken back for runs that come later. A host
that an earlier run waits for stays until that run has started.
"""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.services.scheduler.core.fitting import may_end
from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.state import State


def host_to_go(
    state: State, candidates: Sequence[Host], staying: Sequence[Host], unserved: Sequence[Run], waiting: Sequence[Run],
) -> Host | None:
    """The first of `candidates` that may go; None if none may, nobody needs it, or room is being made already.

    `unserved`: runs that hosts should be started for, `waiting`: all that wait, both in turn. A run that fits on a host
    that stays waits for cells there. Memory that it only may need counts for nothing here.
    """
    run = next((run for run in unserved if not any(host.holds(run.recipe) for host in staying)), None)
    if run is None or state.hosts.yielding or state.boots.count or len(state.host_ends):
        return None
    earlier = waiting[: waiting.index(run)]
    for host in candidates:
        needed = any(other.need.worker_id in host.workers for other in waiting)
        if may_end(state, host) and not needed and not last_of_its_kind(host, staying, earlier):
            return host
    return None


def last_of_its_kind(host: Host, staying: Sequence[Host], runs: Sequence[Run]) -> bool:
    """True if one of `runs` fits on it and on no other host that stays."""
    others = [other for other in staying if other is not host]
    alike = {(run.recipe.gpu_count, run.recipe.gpu_bytes): run.recipe for run in runs}
    return any(
        host.holds(recipe) and not any(other.holds(recipe) for other in others) for recipe in alike.values())
