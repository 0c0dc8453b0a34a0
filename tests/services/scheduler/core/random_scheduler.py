"""The scheduler of a random world: its process, which may be killed at any point, and its disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from looseleaf.ids import LeaseId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, WorkerReport, WorkerStage
from looseleaf.services.scheduler.core.policy import Scheduler
from tests.services.scheduler.core.random_clients import ClientSide
from tests.services.scheduler.core.touched_parts import Checks
from tests.services.scheduler.core.whole_pool import check_nobody_waits_for_nothing

# Of so many worlds one is lived a second time, which must go the same way. It has no factor in common with the numbers
# by which worlds differ.
LIVED_AGAIN_EVERY = 13


class SchedulerSide(ClientSide):
    """Runs the policy, carries out what it wants, and checks what no event may break after each one."""

    def start_scheduler(self) -> None:
        self.life += 1
        self.checks = Checks()
        self.trail = []
        self.life_leases_from = next(self.lease_numbers)
        self.scheduler = Scheduler(self.limits, lambda: LeaseId(f"l{next(self.lease_numbers)}"))
        self.send(ev.JournalRestored(
            tuple(self.disk_executions.values()), tuple(self.disk_hosts.values()),
            tuple(self.disk_sessions.values()), self.disk_totals))

    def send(self, event: ev.Event) -> None:
        actions = self.scheduler.handle(event, self.now_s)
        if self.seed % LIVED_AGAIN_EVERY == 0:
            self.trail.append((event, self.now_s, actions))
        self.handled += 1
        self.checks.check(self.scheduler.state, event, actions, self.now_s)
        if isinstance(event, ev.Tick) and self.scheduler.state.ready:
            check_nobody_waits_for_nothing(self.scheduler.state, self.now_s)
        killed_at = None
        if self.faults and self.random.random() < 0.004:
            killed_at = self.random.randrange(len(actions) + 1)
        for number, action in enumerate(actions):
            # Records of one event are written in one piece: all of them, or none.
            if killed_at is not None and number >= killed_at and not isinstance(action, act.JOURNAL_ACTIONS):
                break
            self.carry_out(action)
        if killed_at is not None:
            self.kill_scheduler()

    def kill_scheduler(self) -> None:
        # Answers to calls of the old life reach nobody; callers see the connection drop and ask again.
        self.check_determinism()
        for daemon in self.daemons:
            daemon.beating = False
        self.start_scheduler()
        for want in list(self.wants.values()):
            if not want.done:
                self.ask(want)

    def reply(self, make: Callable[[], ev.Event]) -> Callable[[], None]:
        """An answer that counts only in the life that asked."""
        life = self.life

        def arrive() -> None:
            if self.life == life:
                self.send(make())

        return arrive

    def carry_out(self, action: act.Action) -> None:
        match action:
            case act.Journal(record):
                self.disk_executions[record.execution_id] = record
            case act.JournalHost(host):
                self.disk_hosts[host.host_id] = host
            case act.JournalTotals(totals):
                self.disk_totals = totals
            case act.JournalSession(owner):
                self.disk_sessions[owner.session_id] = owner
            case act.ForgetSession(session_id):
                del self.disk_sessions[session_id]
            case act.ForgetExecution(execution_id):
                del self.disk_executions[execution_id]
            case act.ForgetHost(host_id):
                del self.disk_hosts[host_id]
            case act.GrantLease(lease):
                record = self.disk_executions[lease.execution_id]
                assert (record.state, record.lease) == (ExecutionState.DISPATCHED, lease), "granted before journaled"
                assert lease.epoch >= self.told_epochs.get(lease.session_id, 0), "an older epoch is granted"
                self.order(lease.host_id, lambda daemon: self.grant(daemon, lease),
                           lambda ok: ev.LeaseGranted(lease.lease_id) if ok else
                           ev.GrantFailed(lease.lease_id, True, "GPU_BUSY"),
                           lambda: ev.GrantFailed(lease.lease_id, False, "DAEMON_DOWN"))
            case act.RevokeLease():
                self.order(action.host_id, lambda daemon: self.revoke(daemon, action.lease_id),
                           lambda in_use: ev.LeaseRevoked(action.lease_id, in_use),
                           lambda: ev.RevokeUnanswered(action.lease_id))
            case act.EvictWorker():
                daemon = self.daemon(action.host_id)
                if daemon.keeps(action.worker_id, self.now_s):
                    session = daemon.workers[action.worker_id].session_id
                    assert action.epoch == self.told_epochs[session], "the daemon is not told of the newest epoch"
                    assert daemon.holds[action.worker_id][1] < action.epoch, "a holder goes too early"

                def ended(evicted: bool) -> ev.Event:
                    return ev.EvictionEnded(action.host_id, action.worker_id, action.lease_id, evicted)

                self.order(action.host_id, lambda daemon: self.evict(daemon, action), ended,
                           lambda: ended(False))
            case act.PrepareWorker():
                assert action.request_id not in self.predicted or action.stage is not WorkerStage.DEVICE_READY or (
                    action.worker_id), "a mere prediction takes a GPU"
                def prepared(ready: WorkerReport) -> ev.Event:
                    return ev.WorkerPrepared(
                        action.request_id, ready.worker_id, 5.0, stage=ready.stage,
                        gpu_indices=ready.gpu_indices or ready.context_gpus)

                self.order(action.host_id, lambda daemon: self.prepare(daemon, action), prepared,
                           lambda: ev.PreparationFailed(action.request_id, "DAEMON_DOWN"))
            case act.NotifyLease():
                self.take_lease(action)
            case act.Refuse():
                self.refused(action)
            case act.AnswerHeartbeat():
                for daemon in self.daemons:
                    if f"-{daemon.host_id}-" in action.request_id:
                        self.flights.append(partial(self.beaten, daemon, action))
            case act.PowerOn(count):
                self.power_on(count)
            case act.StopHost(host_id):
                daemon = self.daemon(host_id)
                busy = [held for held in daemon.leases.values() if held.stage in ("running", "saving")]
                # One that is cut off for long is ended whatever it does: nobody can know.
                assert not busy or daemon.cut_off, "a host is ended under a cell"
                kept = [w for w in daemon.workers.values() if daemon.keeps(w.worker_id, self.now_s)
                        and daemon.holds[w.worker_id][1] >= self.told_epochs[w.session_id]]
                assert not kept or daemon.cut_off, "a host is ended whose worker is kept for its variables"
                self.crash(daemon)
                daemon.stopped = True
                self.flights.append(self.reply(lambda: ev.HostEnded(host_id)))
            case act.AnswerReport(request_id):
                self.flights.append(lambda: self.reported(request_id))

    # --- orders and daemons ---

    def check_determinism(self) -> None:
        numbers = itertools.count(self.life_leases_from + 1)
        again = Scheduler(self.limits, lambda: LeaseId(f"l{next(numbers)}"))
        for event, now_s, actions in self.trail:
            assert again.handle(event, now_s) == actions, "the same events led to other actions"
