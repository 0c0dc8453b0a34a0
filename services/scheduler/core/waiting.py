"""Which runs wait for nothing but a GPU."""

from __future__ import annotations

from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.state import State


def over_quota(state: State, run: Run) -> bool:
    """True if the run must wait until other cells of its tenant have ended."""
    limit = state.limits.tenant_gpus_max
    return bool(limit) and state.shares.gpus(run.tenant) + run.recipe.gpu_count > limit


def any_waits_for_gpus(state: State) -> bool:
    """Whether some run would start if there were GPUs for it."""
    return any(not state.leases.session_runs(run.session_id) and not over_quota(state, run) for run in state.queue)
