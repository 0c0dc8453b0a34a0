"""LooseLeaf: the scheduler's own policy (`services/scheduler/core`) with a frontend and daemons that do as real ones.

Nothing is decided here: events go in, what the policy wants done is carried out. Assumed: orders and answers take no
time beyond `messages_s` a start, no daemon fails (faults are the tests' of the scheduler), heartbeats come every 30 s
with limits to match, since nothing is lost between them. A worker that leaves its device is another process, for which
the whole preparation is counted: more than it takes where the host's memory has the closure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, RecipeFacts, WorkerStage
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.sim.daemon import SimDaemon, SimWorker, attach_s, preparation_s, serves, told_stage
from looseleaf.sim.frontend import SimFrontend, recipe_hash, recipe_of
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.limits import HEARTBEAT_S, sim_limits
from looseleaf.sim.pool import SimHost
from looseleaf.sim.results import INTERACTIVE_S
from looseleaf.sim.workload import lognormal
from looseleaf.sim.world import Session, World

_EPOCH: Final = Epoch(1)


class LooseLeafPolicy:
    """See the module. `decisions` counts calls of `handle` that are not ticks."""

    def __init__(self, world: World) -> None:
        self.decisions = 0
        self._world = world
        self._mechanism = world.model.mechanism
        leases = count(1)
        hosts = world.model.hosts
        limits = sim_limits(hosts.gpus, hosts.boot_s, dict(world.model.limits))
        self.core = Scheduler(limits, lambda: LeaseId(f"l{next(leases)}"))
        self._frontend = SimFrontend(world, self._ask)
        self._daemons: dict[HostId, SimDaemon] = {}
        self._requests = count(1)
        self._workers = count(1)
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._people = {SessionId(f"s{session.index:05d}"): session for session in world.sessions}
        self._ids = {session.index: session_id for session_id, session in self._people.items()}
        # Session -> its running execution's lease and worker, and the number of its last GPU cell that ended.
        self._running: dict[int, tuple[SimDaemon, Lease, SimWorker]] = {}
        self._last_gpu_cell: dict[int, int] = {}
        self._ordered = self._used = 0
        self._late: Counter[str] = Counter()
        self._by_action: dict[type, Callable[[Any], None]] = {
            act.GrantLease: self._grant,
            act.NotifyLease: self._start,
            act.PrepareWorker: self._prepare,
            act.EvictWorker: self._evict,
            act.RevokeLease: self._revoke,
            act.Refuse: self._refuse,
            act.PowerOn: self._power_on,
            act.StopHost: self._stop,
        }
        world.pool.on_up = self._host_up

    def begin(self) -> None:
        """An empty journal, the least number of hosts, ticks."""
        self._tell(ev.JournalRestored())
        self._world.pool.have(self.core.state.limits.hosts_min)
        self._tick()

    # -- the scheduler

    def _tell(self, event: ev.Event) -> None:
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        by_action, events, handle, now_s = self._by_action, self._events, self.core.handle, self._world.engine.now_s
        while events:
            event = events.popleft()
            self.decisions += not isinstance(event, ev.Tick)
            for action in handle(event, now_s):
                carry_out = by_action.get(type(action))
                if carry_out is not None:
                    carry_out(action)
        self._handling = False

    def _request(self, kind: str) -> str:
        return f"{kind}{next(self._requests)}"

    def _tick(self) -> None:
        self._tell(ev.Tick())
        self._world.engine.after(self._world.model.hosts.tick_s, self._tick)

    # -- hosts

    def _host_up(self, host: SimHost) -> None:
        daemon = SimDaemon(self._world, host)
        self._daemons[daemon.host_id] = daemon
        self._heartbeat(daemon)

    def _heartbeat(self, daemon: SimDaemon) -> None:
        if daemon.host_id not in self._daemons:
            return
        self._tell(ev.HeartbeatReceived(self._request("b"), daemon.report()))
        self._world.engine.after(HEARTBEAT_S, self._heartbeat, daemon)

    def _power_on(self, action: act.PowerOn) -> None:
        self._world.pool.boot(action.count, action.shape.gpu_memory_bytes)

    def _stop(self, action: act.StopHost) -> None:
        daemon = self._daemons.pop(action.host_id)
        daemon.release_all()
        self._world.pool.stop(daemon.host)
        self._tell(ev.HostEnded(action.host_id))

    # -- preparations

    def gap_began(self, session: Session) -> None:
        """Edits and guesses follow."""
        self._frontend.gap_began(session)

    def _ask(self, session: Session, recipe: RecipeFacts, *, predicted: bool) -> None:
        context_s, copy_s = self._mechanism.attach_parts_s(recipe.device_bytes)
        self._tell(ev.PreparationRequested(
            self._request("p"), self._ids[session.index], _EPOCH, recipe, predicted=predicted,
            attach_s=context_s + copy_s,
        ))

    def _prepare(self, action: act.PrepareWorker) -> None:
        daemon, session = self._daemons[action.host_id], self._people[action.session_id]
        worker = daemon.workers.get(action.worker_id)
        if worker is not None and worker.leased:
            self._tell(ev.PreparationFailed(action.request_id, "WORKER_BUSY"))
            return
        self._ordered += 1
        stage = self._stage(action, worker)
        if worker is not None and not serves(worker, stage, action.gpu_indices, leave=action.leave_device):
            daemon.end(worker)
            worker = None
        delay_s = preparation_s(self._mechanism, worker, action.recipe.source_hash, session)
        if worker is None:
            worker = self._new_worker(daemon, session)
        context_s, copy_s = self._mechanism.attach_parts_s(action.recipe.device_bytes)
        if stage >= WorkerStage.CONTEXT_READY and worker.gpus != action.gpu_indices:
            delay_s += context_s
        if stage is WorkerStage.DEVICE_READY and worker.loaded != action.recipe.source_hash:
            delay_s += copy_s
            daemon.load(worker, action.gpu_indices, action.recipe.source_hash, action.recipe.device_bytes)
        elif stage is WorkerStage.CONTEXT_READY and not worker.loaded:
            worker.gpus = action.gpu_indices
        now_s = self._world.engine.now_s
        worker.source_hash, worker.version = action.recipe.source_hash, action.recipe.version
        worker.ready_at_s = now_s + delay_s
        daemon.arriving[action.session_id] = worker
        self._world.engine.after(delay_s, self._prepared, daemon, worker, action, stage, delay_s)

    def _stage(self, action: act.PrepareWorker, worker: SimWorker | None) -> WorkerStage:
        """How far the daemon takes it: a worker that has run stays where it is."""
        if not action.gpu_indices or (worker is not None and worker.has_run):
            return WorkerStage.HOST_READY
        without_context = "context-ready" in self._mechanism.without and action.stage is WorkerStage.CONTEXT_READY
        return WorkerStage.HOST_READY if without_context else action.stage

    def _prepared(
        self, daemon: SimDaemon, worker: SimWorker, action: act.PrepareWorker, stage: WorkerStage, took_s: float,
    ) -> None:
        if daemon.arriving.get(action.session_id) is worker:
            del daemon.arriving[action.session_id]
        if daemon.workers.get(worker.worker_id) is not worker:
            self._tell(ev.PreparationFailed(action.request_id, "WORKER_GONE"))
            return
        if stage is WorkerStage.DEVICE_READY and not worker.loaded and not daemon.leased(worker.gpus):
            daemon.load(worker, worker.gpus, action.recipe.source_hash, action.recipe.device_bytes)
        stage = told_stage(worker, stage)
        if not worker.leased:
            worker.change(WorkerStage.COMPLETED if worker.has_run and stage is WorkerStage.HOST_READY else stage)
        self._tell(ev.WorkerPrepared(
            action.request_id, worker.worker_id, took_s * 1000, resident_bytes=worker.resident_bytes,
            stage=stage, gpu_indices=worker.gpus if stage >= WorkerStage.CONTEXT_READY else (),
        ))

    def _new_worker(self, daemon: SimDaemon, session: Session) -> SimWorker:
        worker = SimWorker(WorkerId(f"w{next(self._workers):07d}"), session, self._ids[session.index])
        daemon.add(worker)
        return worker

    def _evict(self, action: act.EvictWorker) -> None:
        daemon = self._daemons.get(action.host_id)
        worker = daemon.workers.get(action.worker_id) if daemon is not None else None
        # A lease without a worker went on with one that was under way: the policy knows it as idle until it started.
        busy = worker is not None and worker.leased
        if daemon is not None and worker is not None and not busy:
            daemon.end(worker)
        self._tell(ev.EvictionEnded(action.host_id, action.worker_id, action.lease_id, not busy))

    # -- runs

    def run_pressed(self, session: Session) -> None:
        """Asks for a lease."""
        self._tell(ev.RunRequested(
            f"r{session.index}", execution_of(session), self._ids[session.index], _EPOCH,
            recipe_of(session, recipe_hash(session)),
        ))

    def _refuse(self, action: act.Refuse) -> None:
        if action.request_id.startswith("r"):
            self._world.refused(self._world.sessions[int(action.request_id[1:])])

    def _grant(self, action: act.GrantLease) -> None:
        self._tell(ev.LeaseGranted(action.lease.lease_id))

    def _revoke(self, action: act.RevokeLease) -> None:
        in_use = action.lease_id in self._daemons[action.host_id].leases
        self._tell(ev.LeaseRevoked(action.lease_id, in_use))

    def _start(self, action: act.NotifyLease) -> None:
        lease = action.lease
        daemon, session = self._daemons[lease.host_id], self._people[lease.session_id]
        now_s, source_hash = self._world.engine.now_s, recipe_hash(session)
        worker = daemon.worker_for(lease)
        self._used += worker is not None and worker.source_hash == source_hash
        # What is under way goes on, also if it has to be done again for this cell.
        under_way_s = max(0.0, worker.ready_at_s - now_s) if worker is not None else 0.0
        prepare_s = preparation_s(self._mechanism, worker, source_hash, session)
        new = worker is None
        if worker is None:
            worker = self._new_worker(daemon, session)
        attaches_s = attach_s(
            self._mechanism, worker, lease.gpu_indices, source_hash, self._last_gpu_cell.get(session.index, 0))
        delay_s = under_way_s + prepare_s + attaches_s
        self._count_late(session, delay_s, {
            "new worker" if new else "other recipe": prepare_s, "under way": under_way_s, "attach": attaches_s})
        daemon.lease(lease, worker)
        daemon.load(worker, lease.gpu_indices, source_hash, session.cell.closure_bytes)
        worker.source_hash, worker.version = source_hash, Version(session.number)
        worker.execution_id = lease.execution_id
        worker.change(WorkerStage.DEVICE_READY)
        self._running[session.index] = (daemon, lease, worker)
        if delay_s > 0.0:
            self._world.engine.after(delay_s, self._started, session)
        else:
            self._started(session)

    def _count_late(self, session: Session, delay_s: float, parts: dict[str, float]) -> None:
        """Notes why the session's cell will not start within a second, if so; "no GPU": it waited for one."""
        assert session.waits_since_s is not None
        waited_s = self._world.engine.now_s - session.waits_since_s
        if session.waits_since_s < self._world.warmup_s:
            return
        if waited_s + delay_s + self._mechanism.messages_s > INTERACTIVE_S:
            parts["no GPU"] = waited_s
            self._late[max(parts, key=parts.__getitem__)] += 1

    def _started(self, session: Session) -> None:
        daemon, lease, worker = self._running[session.index]
        daemon.set_lease_state(lease, GpuState.RUNNING)
        worker.change(WorkerStage.RUNNING)
        worker.has_run = True
        self._report(lease, worker, ExecutionState.STARTED)
        self._world.started(session)

    def cell_ended(self, session: Session) -> None:
        """Saves."""
        daemon, lease, worker = self._running[session.index]
        daemon.set_lease_state(lease, GpuState.SAVING)
        worker.change(WorkerStage.SAVING)
        self._last_gpu_cell[session.index] = worker.state_of = session.number
        self._report(lease, worker, ExecutionState.FINISHED)
        mechanism = self._mechanism
        save_s = lognormal(
            session.random, mechanism.save_median_s, mechanism.save_sigma, mechanism.save_max_s)
        self._world.engine.after(save_s, self._saved, session)

    def _saved(self, session: Session) -> None:
        daemon, lease, worker = self._running.pop(session.index)
        worker.source_hash, worker.leased = "", False
        worker.change(WorkerStage.COMPLETED)
        daemon.set_lease_state(lease, None)
        self._report(lease, worker, ExecutionState.SAVED)

    def _report(self, lease: Lease, worker: SimWorker, state: ExecutionState) -> None:
        self._tell(ev.ExecutionReported(
            self._request("e"), lease.execution_id, lease.lease_id, state, release=state.ended, worker=worker.told()))

    def preparations(self) -> dict[str, int]:
        """Orders carried out, and runs that found theirs done or under way; an order that was superseded is wasted."""
        return {"ordered": self._ordered, "used": self._used, "wasted": self._ordered - self._used}

    def late(self) -> dict[str, int]:
        """By "new worker", "other recipe" (of its worker), "under way" (a preparation), "attach" and "no GPU"."""
        return dict(self._late)


def execution_of(session: Session) -> ExecutionId:
    """The id of that run."""
    return ExecutionId(f"x{session.index}.{session.number}")
