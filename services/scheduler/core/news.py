"""What people who wait are told: their place and one sentence why; only when it changes."""

from __future__ import annotations

import math

from looseleaf.ids import SessionId
from looseleaf.services.scheduler.core.actions import NotifyQueue
from looseleaf.services.scheduler.core.fairness import in_turn
from looseleaf.services.scheduler.core.holds import holder_of
from looseleaf.services.scheduler.core.hosts import Host, Liveness
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.waiting import over_quota


def tell_positions(state: State, now_s: float) -> None:
    """Positions count every run that waits, from 1."""
    if not len(state.queue):
        return
    pool_reason = _pool_reason(state, now_s)
    free = _Free(state, now_s)
    held_back: set[SessionId] = set()
    turns = in_turn(state.queue, state.shares, state.limits, now_s, state.leases.session_runs)
    for position, run in enumerate(turns, start=1):
        if run.session_id in held_back or state.leases.session_runs(run.session_id):
            reason = "This notebook's previous GPU cell has not ended."
        else:
            reason = pool_reason or _run_reason(state, free, run, now_s)
        held_back.add(run.session_id)
        for waiter in run.waiters:
            if run.told.get(waiter) != (position, reason):
                run.told[waiter] = (position, reason)
                state.act(NotifyQueue(waiter, position, reason, _estimated_s(state, position)))


def _estimated_s(state: State, position: int) -> float | None:
    """A lease's mean time for each that goes before, shared by the GPUs; None while too few have ended."""
    if state.accounts.ended_leases < state.limits.estimate_leases_min or not state.leases.gpus:
        return None
    return round(state.accounts.mean_held_s * position / state.leases.gpus, 1)


def _pool_reason(state: State, now_s: float) -> str:
    """Why nobody gets a GPU at the moment, empty if hosts take work."""
    if not state.ready:
        return "The scheduler has just started and waits for its GPU hosts."
    if state.hosts.open_for_work(now_s):
        return ""
    states = [host.liveness(now_s, state.limits) for host in state.hosts.with_gpus()]
    if state.boots.count:
        return "A GPU host is being started."
    if state.boots.resting(now_s) and not any(seen is not Liveness.DEAD for seen in states):
        return "No GPU host could be started; it is tried again."
    if Liveness.DRAINING in states:
        return "Every GPU host is being drained and takes no new work."
    if any(seen is not Liveness.DEAD for seen in states):
        return "The GPU hosts do not answer at the moment."
    return "No GPU host is connected."


class _Free:
    """How many GPUs that nobody uses one host has at most, of the hosts that take work.

    Those on which variables are kept that no version has are used; `kept_until_s`: when the first of them may go.
    """

    def __init__(self, state: State, now_s: float) -> None:
        self._hosts: list[tuple[Host, list[int]]] = []
        self.kept_until_s: float | None = None
        for host in state.hosts.open_for_work(now_s):
            kept = {i: w.held_until_s for w in host.workers.values() if now_s < w.held_until_s for i in w.gpu_indices}
            open_ = [index for index in range(host.gpu_count) if not state.leases.occupied(host.host_id, index)]
            self._hosts.append((host, [index for index in open_ if index not in kept]))
            for until_s in (kept[index] for index in open_ if index in kept):
                self.kept_until_s = until_s if self.kept_until_s is None else min(self.kept_until_s, until_s)
        self.anywhere = max((len(free) for _host, free in self._hosts), default=0)
        # Kinds of hosts that could not be started lately.
        self.resting = state.boots.resting(now_s)
        self._least_spare_bytes = min((host.least_spare_bytes for host, _free in self._hosts), default=0)

    def holds(self, run: Run) -> bool:
        """True if one of the hosts could hold the cell if nobody else were there."""
        return any(host.holds(run.recipe) for host, _free in self._hosts)

    def for_run(self, run: Run, gpu_bytes: int) -> int:
        """Of the hosts that can hold the cell only, and of GPUs with so much memory that others leave."""
        # Most cells fit anywhere: the hosts are gone through for large ones alone.
        if gpu_bytes <= self._least_spare_bytes:
            return self.anywhere
        return max((
            sum(1 for index in free if host.spare_bytes(index) >= gpu_bytes)
            for host, free in self._hosts if host.fits(run.recipe.gpu_count, gpu_bytes)), default=0)


def _run_reason(state: State, free: _Free, run: Run, now_s: float) -> str:
    if over_quota(state, run):
        return f"Your team already uses {state.shares.gpus(run.tenant)} of its {_gpus(state.limits.tenant_gpus_max)}."
    count, largest_free = run.recipe.gpu_count, free.for_run(run, run.wanted_gpu_bytes(now_s, state.limits))
    more = _more(state, free, run)
    if run.need.worker_id and _is_tight_at_its_holder(state, run, now_s):
        after = f"after {state.limits.memory_patience_s:.0f} s"
        return f"Others use memory of the GPU where this cell's variables are kept; it runs there {after}."
    if count > 1:
        verb = "is" if largest_free == 1 else "are"
        return f"Needs {count} GPUs on one host; at most {largest_free} {verb} free on one.{more}"
    if free.anywhere and not largest_free:
        if free.for_run(run, run.recipe.gpu_bytes):
            return (
                "No GPU with as much memory as this cell held in earlier runs is free; after"
                f" {state.limits.memory_patience_s:.0f} s one with room for its variables will do.")
        return f"No GPU with enough memory for this cell's variables is free.{more}"
    if not free.anywhere and free.kept_until_s is not None:
        wait_s = max(1, math.ceil(free.kept_until_s - run.arrived_at_s))
        return f"A GPU keeps variables that cannot be saved, for at most {wait_s} s from this cell's Run on."
    sessions = state.leases.sessions()
    others = len(sessions) - (run.session_id in sessions)
    if state.leases.gpus == 0:
        return "A GPU is about to become free."
    if not others:
        return f"{_gpus(state.leases.gpus)} busy with this notebook's earlier cell."
    if largest_free and run.refusals:
        return "The GPU host refused the cell and is asked again."
    if largest_free:
        return "Free GPUs are kept for a cell that waits for several of them."
    return f"{_gpus(state.leases.gpus)} busy with {'another notebook' if others == 1 else 'other notebooks'}.{more}"


def _is_tight_at_its_holder(state: State, run: Run, now_s: float) -> bool:
    """True if it waits only until it starts there all the same."""
    found = holder_of(state, run)
    if found is None or not run.patient(now_s, state.limits):
        return False
    host, worker = found
    wanted = run.wanted_gpu_bytes(now_s, state.limits)
    return any(host.spare_bytes(index) < wanted for index in worker.gpu_indices)


def _more(state: State, free: _Free, run: Run) -> str:
    """Whether another host is being started, or could not be."""
    if state.boots.count:
        return " Another host is being started."
    if free.resting and not free.holds(run):
        count, gpu_bytes = run.recipe.gpu_count, run.recipe.gpu_bytes
        if state.shapes.for_cell(count, gpu_bytes) and not state.shapes.for_cell(count, gpu_bytes, free.resting):
            return " A host that could hold the cell could not be started; it is tried again."
    return ""


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
