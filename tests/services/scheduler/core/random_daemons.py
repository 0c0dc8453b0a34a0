"""The daemons of a random world: what they do with orders, their heartbeats, their cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from looseleaf.ids import Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, WorkerReport, WorkerStage
from tests.services.scheduler.core.random_parts import Daemon, Held, runs, serves
from tests.services.scheduler.core.random_state import HOLD_S, LIMITS, WorldState


class DaemonSide(WorldState):
    """Orders arrive late or not at all, and so do answers and reports."""

    def order(self, host_id: str, work: Callable[[Daemon], Any], answered: Callable[[Any], ev.Event],
              lost: Callable[[], ev.Event]) -> None:
        daemon = self.daemon(host_id)
        failure = self.reply(lost)

        def arrive() -> None:
            if not daemon.up or daemon.cut_off:
                self.flights.append(failure)
                return
            result = work(daemon)
            if self.faults and self.random.random() < 0.05:
                self.flights.append(failure)
            else:
                self.flights.append(answer(result))

        life = self.life

        def answer(result: Any) -> Callable[[], None]:
            def deliver() -> None:
                if self.life == life:
                    self.send(answered(result))

            return deliver

        self.flights.append(arrive)

    def grant(self, daemon: Daemon, lease: Lease) -> bool:
        busy = {index for held in daemon.leases.values() for index in held.lease.gpu_indices}
        if lease.lease_id in daemon.leases:
            return True
        if busy & set(lease.gpu_indices) or (self.faults and self.random.random() < 0.05):
            return False
        daemon.leases[lease.lease_id] = Held(lease, self.now_s)
        for worker_id, worker in list(daemon.workers.items()):
            if set(worker.gpu_indices) & set(lease.gpu_indices) and worker.session_id != lease.session_id:
                del daemon.workers[worker_id]
        return True

    def revoke(self, daemon: Daemon, lease_id: str) -> bool:
        held = daemon.leases.get(lease_id)
        if held is not None and held.stage == "unused":
            del daemon.leases[lease_id]
            return False
        return held is not None

    def evict(self, daemon: Daemon, order: act.EvictWorker) -> bool:
        worker = daemon.workers.get(order.worker_id)
        if worker is None:
            return True
        kept = daemon.keeps(order.worker_id, self.now_s) and daemon.holds[order.worker_id][1] >= order.epoch
        if runs(worker) or kept or (self.faults and self.random.random() < 0.1):
            return False
        del daemon.workers[order.worker_id]
        return True

    def prepare(self, daemon: Daemon, action: act.PrepareWorker) -> WorkerReport:
        worker_id = WorkerId(action.worker_id or f"w{next(self.names)}")
        old = daemon.workers.get(worker_id)
        if old is not None and runs(old):
            return WorkerReport(worker_id, action.session_id, WorkerStage.HOST_READY)
        if old is not None and not serves(old, action):
            del daemon.workers[worker_id]
            worker_id, old = WorkerId(f"w{next(self.names)}"), None
        taken = {index for held in daemon.leases.values() for index in held.lease.gpu_indices}
        stage, gpus = action.stage, action.gpu_indices
        if stage is WorkerStage.DEVICE_READY and taken & set(gpus):
            stage, gpus = WorkerStage.HOST_READY, ()
        if stage is not WorkerStage.DEVICE_READY:
            gpus = old.gpu_indices if old is not None and old.execution_id else ()
        context = action.gpu_indices if stage is WorkerStage.CONTEXT_READY and not gpus else ()
        if stage is WorkerStage.HOST_READY and not gpus and old is not None and old.context_gpus:
            # It stays as long as its process.
            stage, context = WorkerStage.CONTEXT_READY, old.context_gpus
        daemon.workers[worker_id] = WorkerReport(
            worker_id, action.session_id, stage, action.recipe.version, action.recipe.source_hash, gpus,
            context_gpus=context)
        return daemon.workers[worker_id]

    def beat(self, daemon: Daemon) -> None:
        if daemon.beating or not daemon.up or daemon.cut_off:
            return
        for lease_id, held in list(daemon.leases.items()):
            if held.stage == "unused" and self.now_s - held.renewed_at_s > LIMITS.lease_ttl_s:
                del daemon.leases[lease_id]
        if self.faults and self.memory.random() < 0.1:
            daemon.foreign_bytes = [self.memory.choice((0, 0, 5, 60)) for _ in range(daemon.gpus)]
        daemon.beating = True
        request_id = f"b-{daemon.host_id}-{daemon.incarnation}-{self.now_s}"
        self.send(ev.HeartbeatReceived(request_id, daemon.report(self.now_s)))

    def beaten(self, daemon: Daemon, answer: act.AnswerHeartbeat) -> None:
        sent_at_s = float(answer.request_id.rsplit("-", 1)[1])
        if f"-{daemon.incarnation}-" not in answer.request_id:
            return
        daemon.beating = False
        for lease_id in answer.renewed:
            if lease_id in daemon.leases:
                daemon.leases[lease_id].renewed_at_s = sent_at_s
        for lease_id in answer.unknown:
            held = daemon.leases.get(lease_id)
            if held is not None and held.stage == "unused":
                del daemon.leases[lease_id]

    def crash(self, daemon: Daemon) -> None:
        daemon.up = False
        daemon.leases.clear()
        daemon.workers.clear()
        daemon.beating = False

    def power_on(self, count: int) -> None:
        assert self.limits.hosts_max
        stopped = [daemon for daemon in self.daemons if daemon.stopped][:count]
        for daemon in stopped:
            daemon.stopped = False
            self.flights.append(partial(self.restart, daemon))
        if len(stopped) < count:
            self.flights.append(self.reply(lambda: ev.PowerOnFailed(count - len(stopped), "NO_MORE_HOSTS")))

    def restart(self, daemon: Daemon) -> None:
        daemon.up, daemon.incarnation = True, daemon.incarnation + 1

    # --- cells ---

    def progress(self, daemon: Daemon) -> None:
        """One running cell of the daemon takes its next step and reports it."""
        running = [held for held in daemon.leases.values() if held.stage in ("running", "saving")]
        if not daemon.up or not running:
            return
        held = self.random.choice(running)
        worker = daemon.workers[held.worker_id]
        stages = {"running": ("saving", ExecutionState.FINISHED), "saving": ("ended", ExecutionState.SAVED)}
        held.stage, state = stages[held.stage]
        stage = WorkerStage.SAVING if held.stage == "saving" else WorkerStage.COMPLETED
        daemon.workers[held.worker_id] = WorkerReport(
            worker.worker_id, worker.session_id, stage, Version(worker.version + 1), "", worker.gpu_indices,
            worker.execution_id)
        daemon.holds.pop(held.worker_id, None)
        if state is ExecutionState.SAVED and self.random.random() < 0.4:
            daemon.holds[held.worker_id] = (self.now_s + HOLD_S, held.lease.epoch)
        self.report_state(daemon, held, state)

    def report_state(self, daemon: Daemon, held: Held, state: ExecutionState) -> None:
        request_id = f"p{next(self.names)}"
        release = state.ended
        incarnation = daemon.incarnation

        def dispatch() -> None:
            if daemon.cut_off or not daemon.up or daemon.incarnation != incarnation:
                if release and daemon.up and daemon.incarnation == incarnation:
                    self.reports[request_id] = dispatch
                return
            if release:
                self.reports[request_id] = dispatch
            self.send(ev.ExecutionReported(
                request_id, held.lease.execution_id, held.lease.lease_id, state, "", release, None,
                daemon.told(held.worker_id, self.now_s) if held.worker_id in daemon.workers else None))

        def ended() -> None:
            daemon.leases.pop(held.lease.lease_id, None)

        if release:
            self.endings[request_id] = ended
        self.flights.append(dispatch)

    def reported(self, request_id: str) -> None:
        self.reports.pop(request_id, None)
        ended = self.endings.pop(request_id, None)
        if ended is not None:
            ended()

    # --- clients ---
