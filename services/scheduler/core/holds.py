"""Workers that are kept for variables which no version has (design §3: What cannot move).

A cell that needs such a variable runs on exactly that worker or is refused before it runs. Until the hold's time is
over the worker makes way for nobody; afterwards it goes last of the completed ones.
"""

from __future__ import annotations

from looseleaf.errors import LooseLeafError
from looseleaf.services.scheduler.core.facts import HostReport
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.refusals import holder_gone, holder_has_other_gpus, holder_too_small
from looseleaf.services.scheduler.core.state import State


def take_ended_holders(state: State, report: HostReport, now_s: float) -> None:
    """Remembers what a host says of workers that ended with unsaved variables."""
    for ended in report.ended_holders:
        state.remember_end(ended.worker_id, ended.why, now_s - ended.ended_s_ago)


def drop_stale_holds(state: State, host: Host) -> bool:
    """In a newer epoch of its session nobody can use what a worker holds: it is kept no longer. True: there was one."""
    dropped = False
    for worker in host.workers.values():
        if worker.hold is not None and worker.hold.epoch < state.sessions.epoch(worker.session_id):
            worker.take_hold(None, 0.0)
            dropped = True
    if dropped:
        state.hosts.touch(host.host_id)
    return dropped


def hold_ended_since(state: State, then_s: float, now_s: float) -> bool:
    """True if a worker that made way for nobody at `then_s` may go at `now_s`."""
    workers = (worker for host in state.hosts for worker in host.workers.values())
    return any(then_s < worker.held_until_s <= now_s for worker in workers)


def lost_need(state: State, run: Run, now_s: float) -> LooseLeafError | None:
    """Why the run can never get the worker that it needs; None if it can, or needs none.

    Of a session's first run only: the worker of the one before may not be known here before that has ended.
    """
    if not run.need.worker_id:
        return None
    found = holder_of(state, run)
    if found is None:
        if state.hosts.awaited():
            return None
        why, ended_at_s = state.ended_holders.get(run.need.worker_id, ("", now_s))
        return holder_gone(run.need.names, why, now_s - ended_at_s)
    host, worker = found
    if worker.gpu_indices and len(worker.gpu_indices) != run.recipe.gpu_count:
        return holder_has_other_gpus(run.need.names, len(worker.gpu_indices), run.recipe.gpu_count)
    if not host.holds(run.recipe):
        return holder_too_small(run.need.names, run.recipe.device_bytes, host.gpu_memory_bytes)
    return None


def holder_of(state: State, run: Run) -> tuple[Host, Worker] | None:
    """The worker that the run needs, with its host; None if it is not known, or the run needs none."""
    workers = state.hosts.workers_of(run.session_id)
    return next(((host, worker) for host, worker in workers if worker.worker_id == run.need.worker_id), None)
