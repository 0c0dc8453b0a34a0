"""A notebook whose worker makes way for somebody else's cell gets its next cell prepared anew.

The guess at the next cell comes soon after a cell's end, when the worker still stands on its GPU, and goes with it;
what was edited lately may lie on a GPU that another cell needs. Without this the notebook would begin from nothing at
the next keystroke. It costs host memory only, never a GPU.
"""

from __future__ import annotations

from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.hosts import Worker
from looseleaf.services.scheduler.core.preparing import preparation_requested
from looseleaf.services.scheduler.core.state import State


def prepare_again(state: State, ended: Worker, now_s: float) -> None:
    """Asks for a worker for the cell for which `ended` was ready, as a guess, unless the session has another one.

    Not for one that only waited for a cell in which nobody types any more (`speculative_expiry_s`).

    Nobody awaits its answer. Sessions that lose workers too often are left alone, as with edits (`fork_wait_s`).
    """
    session_id, recipe = ended.session_id, ended.prepared
    if recipe is None or state.preparations.get(session_id) is not None:
        return
    if not ended.has_run and now_s - ended.prepared_at_s >= state.limits.speculative_expiry_s:
        return
    if any(worker is not ended for _host, worker in state.hosts.workers_of(session_id)):
        return
    preparation_requested(state, PreparationRequested(
        f"again-{state.number}-{ended.worker_id}", session_id, state.sessions.epoch(session_id), recipe,
        predicted=True, tenant=state.sessions.tenant(session_id),
    ), now_s)
