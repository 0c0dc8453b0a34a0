"""Where provisioned GPU-seconds went, sampled with each tick: every GPU that is paid for is in one state."""

from __future__ import annotations

from typing import Final

from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.hosts import Host
from looseleaf.services.scheduler.core.meters import GPU_STATES
from looseleaf.services.scheduler.core.state import State

_LEASED: Final = {ExecutionState.STARTED: "running", ExecutionState.FINISHED: "saving"}


def gpus_by_state(state: State, now_s: float) -> dict[str, int]:
    """How many GPUs are in each state now: leased ones by their cell, others by what stands on them."""
    gpus = dict.fromkeys(GPU_STATES, 0)
    gpus["boot"] = state.boots.gpus
    # Not to be had any more, and paid for until the provider ends them.
    gpus["idle"] = state.host_ends.gpus
    state.hosts.file()
    for entry in state.leases:
        record = state.journal.get(entry.lease.execution_id)
        # A cell of which the journal has forgotten everything may still run.
        doing = _LEASED.get(record.state, "preparing") if record is not None else "running"
        gpus[doing] += len(entry.lease.gpu_indices)
    for host in state.hosts.with_gpus():
        if not host.dead(now_s, state.limits):
            _count_unleased(state, host, gpus)
    return gpus


def _count_unleased(state: State, host: Host, gpus: dict[str, int]) -> None:
    unleased = set(range(host.gpu_count)) - state.leases.taken(host.host_id)
    warm: set[int] = set()
    speculative: set[int] = set()
    for worker in host.workers.bound() if unleased else ():
        (warm if worker.has_run else speculative).update(worker.gpu_indices)
    warm &= unleased
    speculative = (speculative & unleased) - warm
    gpus["warm"] += len(warm)
    gpus["speculative"] += len(speculative)
    gpus["idle"] += len(unleased) - len(warm) - len(speculative)
