"""A small world of daemons and clients where messages are late, lost and doubled, and parts die.

Faults: lost and reordered answers, partitions, daemons and schedulers killed at any point, a scheduler that stands
still, cancelled and doubled requests, epoch changes. What must hold is checked after each event.
`python -m tests.services.scheduler.core.random_world SEED ...` runs the worlds of these seeds.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    HostRecord,
    Lease,
    Need,
    RecipeFacts,
    SessionRecord,
    Totals,
    WorkerReport,
    WorkerStage,
)
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler
from tests.services.scheduler.core.random_parts import Daemon, Held, Want, runs
from tests.services.scheduler.core.whole_pool import check_index, check_table

STEPS = 400
SETTLE_ROUNDS_MAX = 400
MODULE = "tests.services.scheduler.core.random_world"
# Events between two looks at whether the index of rooms tells the same as a look at every host.
INDEX_CHECK_EVERY = 16
# How long a worker is kept for variables that no version has.
HOLD_S = 3.0
# `look_again_s` is off: it would hide a reason to look at the queue that the policy forgot.
LIMITS = Limits(
    run_queue_max=40, journal_records_max=1000, gang_patience_s=2.0, pending_orphan_s=1e9, look_again_s=1e9)


class World:
    """Everything outside the policy, driven by one seeded generator."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # In every second world hosts are started and ended by demand.
        self.limits = LIMITS if seed % 2 else replace(
            LIMITS, hosts_max=3, gpus_per_host=1, headroom_hosts=0, demand_peak_s=3.0, power_off_after_s=2.0,
            boot_timeout_s=20.0, boot_retry_s=1.0, prepare_stage_max=WorkerStage.DEVICE_READY,
            speculative_expiry_s=2.0)
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.names = itertools.count(1)
        self.lease_numbers = itertools.count(1)
        self.daemons = [Daemon("h0", 2), Daemon("h1", 1), Daemon("h2", 1)]
        self.wants: dict[str, Want] = {}
        self.epochs = {f"s{n}": 1 for n in range(4)}
        self.told_epochs: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.flights: list[Callable[[], None]] = []
        # Release reports that no answer came to, and what their answer ends.
        self.reports: dict[str, Callable[[], None]] = {}
        self.again: list[Want] = []
        self.endings: dict[str, Callable[[], None]] = {}
        self.disk_executions: dict[str, ExecutionRecord] = {}
        self.disk_hosts: dict[str, HostRecord] = {}
        self.disk_sessions: dict[str, SessionRecord] = {}
        self.disk_totals = Totals()
        self.life = 0
        self.handled = 0
        self.faults = True
        self.predicted: set[str] = set()
        self.trail: list[tuple[ev.Event, float, list[act.Action]]] = []
        self.start_scheduler()

    # --- the scheduler's process ---

    def start_scheduler(self) -> None:
        self.life += 1
        self.trail = []
        self.life_leases_from = next(self.lease_numbers)
        self.scheduler = Scheduler(self.limits, lambda: LeaseId(f"l{next(self.lease_numbers)}"))
        self.send(ev.JournalRestored(
            tuple(self.disk_executions.values()), tuple(self.disk_hosts.values()),
            tuple(self.disk_sessions.values()), self.disk_totals))

    def send(self, event: ev.Event) -> None:
        actions = self.scheduler.handle(event, self.now_s)
        self.trail.append((event, self.now_s, actions))
        self.handled += 1
        check_table(self.scheduler.state)
        if self.scheduler.state.number % INDEX_CHECK_EVERY == 0:
            check_index(self.scheduler.state, self.now_s)
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
                daemon = next(d for d in self.daemons if d.host_id == action.host_id)
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
                        gpu_indices=ready.gpu_indices or action.gpu_indices)

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
                daemon = next(d for d in self.daemons if d.host_id == host_id)
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

    def order(self, host_id: str, work: Callable[[Daemon], Any], answered: Callable[[Any], ev.Event],
              lost: Callable[[], ev.Event]) -> None:
        daemon = next(d for d in self.daemons if d.host_id == host_id)
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
        taken = {index for held in daemon.leases.values() for index in held.lease.gpu_indices}
        stage, gpus = action.stage, action.gpu_indices
        if stage is WorkerStage.DEVICE_READY and taken & set(gpus):
            stage, gpus = WorkerStage.HOST_READY, ()
        if stage is not WorkerStage.DEVICE_READY:
            gpus = old.gpu_indices if old is not None and old.execution_id else ()
        daemon.workers[worker_id] = WorkerReport(
            worker_id, action.session_id, stage, action.recipe.version, action.recipe.source_hash, gpus)
        return daemon.workers[worker_id]

    def beat(self, daemon: Daemon) -> None:
        if daemon.beating or not daemon.up or daemon.cut_off:
            return
        for lease_id, held in list(daemon.leases.items()):
            if held.stage == "unused" and self.now_s - held.renewed_at_s > LIMITS.lease_ttl_s:
                del daemon.leases[lease_id]
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

    def ask(self, want: Want) -> None:
        want.asked = f"q{next(self.names)}"
        recipe = RecipeFacts(f"hash-{want.execution_id}", Version(1), gpu_count=want.gpus)
        self.told_epochs[want.session_id] = max(self.told_epochs.get(want.session_id, 0), want.epoch)
        self.send(ev.RunRequested(
            want.asked, ExecutionId(want.execution_id), SessionId(want.session_id), Epoch(want.epoch), recipe,
            self.random.choice(("interactive", "batch")), Need(WorkerId(want.need), ("it",) if want.need else ()),
            tenant=f"t{int(want.session_id[1:]) % 2}"))

    def take_lease(self, action: act.NotifyLease) -> None:
        want = self.wants.get(action.lease.execution_id)
        if want is None or want.done or action.request_id != want.asked:
            return
        lease = action.lease
        assert lease.epoch >= self.told_epochs[lease.session_id], "an older epoch gets a lease"
        assert lease.worker_required == bool(want.need)
        assert not want.need or lease.worker_id == want.need, "a cell is to run where its variables are not"
        record = self.disk_executions[lease.execution_id]
        assert record.lease == lease, "a lease is handed out that the journal does not hold"
        self.flights.append(lambda: self.start(want, lease))

    def start(self, want: Want, lease: Lease) -> None:
        """The client opens Execute; if the daemon does not hold the lease any more, the client asks again."""
        daemon = next(d for d in self.daemons if d.host_id == lease.host_id)
        if want.done:
            return
        if not daemon.up or daemon.cut_off:
            want.done = True
            return
        held = daemon.leases.get(lease.lease_id)
        if held is None or (held.stage == "unused" and self.now_s - held.renewed_at_s > LIMITS.lease_ttl_s):
            # The scheduler learns with the heartbeats that this lease is gone; until then it would hand out the same.
            if want.epoch == self.epochs[want.session_id]:
                self.again.append(want)
            else:
                want.done = True
            return
        if held.stage != "unused":
            return
        want.done = True
        self.starts[lease.execution_id] = self.starts.get(lease.execution_id, 0) + 1
        assert self.starts[lease.execution_id] == 1, f"{lease.execution_id} starts a second time"
        used = [i for other in daemon.leases.values() if other.stage in ("running", "saving")
                for i in other.lease.gpu_indices]
        assert not set(used) & set(lease.gpu_indices), "two cells on one GPU"
        if want.need and want.need not in daemon.workers:
            held.stage = "ended"
            self.report_state(daemon, held, ExecutionState.FAILED)
            return
        held.stage = "running"
        held.worker_id = lease.worker_id if lease.worker_id in daemon.workers else f"w{next(self.names)}"
        daemon.workers[held.worker_id] = WorkerReport(
            WorkerId(held.worker_id), lease.session_id, WorkerStage.RUNNING, Version(1), "", lease.gpu_indices,
            lease.execution_id)
        self.report_state(daemon, held, ExecutionState.STARTED)

    def refused(self, action: act.Refuse) -> None:
        for want in self.wants.values():
            if want.asked == action.request_id:
                want.done = True
        for daemon in self.daemons:
            if action.request_id.startswith(f"b-{daemon.host_id}-{daemon.incarnation}-"):
                # Its end is under way, or that of an earlier start of it: it asks again.
                daemon.beating = False
        self.reported(action.request_id)

    # --- one step ---

    def run(self) -> None:
        """The whole life of the world; raises AssertionError naming the command that repeats it."""
        try:
            self.live()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}; repeat with `python -m {MODULE} {self.seed}`") from error

    def live(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.settle()

    def step(self) -> None:
        self.now_s = round(self.now_s + self.random.choice((0.0, 0.0, 0.05, 0.3)), 3)
        roll = self.random.random()
        daemon = self.random.choice(self.daemons)
        if roll < 0.12:
            self.new_run()
        elif roll < 0.45 and self.flights:
            self.flights.pop(self.random.randrange(len(self.flights)))()
        elif roll < 0.65:
            self.beat(daemon)
        elif roll < 0.85:
            self.progress(daemon)
        elif roll < 0.88:
            self.send(ev.Tick())
        elif roll < 0.92:
            self.prepare_something()
        elif roll < 0.94:
            self.cancel_something()
        elif roll < 0.955:
            self.double_something()
        elif roll < 0.965:
            self.raise_epoch()
        elif roll < 0.975:
            daemon.cut_off = not daemon.cut_off
            daemon.beating = False
        elif roll < 0.985:
            if daemon.up:
                self.crash(daemon)
            elif not daemon.stopped:
                self.restart(daemon)
        elif roll < 0.99:
            self.stand_still()
        else:
            self.retry_reports()

    def stand_still(self) -> None:
        """Nobody is heard for a while: by the weather's fault, or because the scheduler's process slept."""
        silence_s = self.random.choice((4.0, 4.0, 12.0))
        slept = self.random.random() < 0.5
        self.now_s += silence_s
        self.send(ev.Tick(silence_s if slept else 0.0))

    def retry_reports(self) -> None:
        waiting, self.reports = list(self.reports.values()), {}
        self.flights += waiting
        again, self.again = self.again, []
        for want in again:
            if not want.done:
                self.ask(want)

    def new_run(self) -> None:
        session = self.random.choice(list(self.epochs))
        want = Want(f"x{next(self.names)}", session, self.epochs[session], self.random.choice((1, 1, 1, 2)))
        holders = [w.worker_id for d in self.daemons for w in d.workers.values()
                   if w.session_id == session and w.worker_id in d.holds]
        if holders and self.random.random() < 0.6:
            want.need = self.random.choice([*holders, "w-gone"])
        self.wants[want.execution_id] = want
        self.ask(want)

    def prepare_something(self) -> None:
        session = self.random.choice(list(self.epochs))
        self.told_epochs[session] = max(self.told_epochs.get(session, 0), self.epochs[session])
        request_id = f"q{next(self.names)}"
        predicted = self.random.random() < 0.2
        if predicted:
            self.predicted.add(request_id)
        self.send(ev.PreparationRequested(
            request_id, SessionId(session), Epoch(self.epochs[session]),
            RecipeFacts(f"hash-{self.random.randrange(5)}", Version(1), frozenset({"a"})),
            predicted=predicted, certain=self.random.random() < 0.8,
            attach_s=self.random.choice((0.01, 0.3, 1.0)), tenant=f"t{int(session[1:]) % 2}"))

    def open_wants(self) -> list[Want]:
        return [want for want in self.wants.values() if not want.done]

    def cancel_something(self) -> None:
        if self.open_wants():
            want = self.random.choice(self.open_wants())
            want.done = True
            self.send(ev.RunCancelled(want.asked, ExecutionId(want.execution_id)))

    def double_something(self) -> None:
        if self.open_wants():
            # A retry by the transport: the first call is gone, the second one joins or asks again.
            want = self.random.choice(self.open_wants())
            old = want.asked
            self.ask(want)
            self.send(ev.RunCancelled(old, ExecutionId(want.execution_id)))

    def raise_epoch(self) -> None:
        session = self.random.choice(list(self.epochs))
        self.epochs[session] += 1

    # --- the end, and what must hold ---

    def settle(self) -> None:
        """No more faults: everybody who still waits is served, and every GPU comes back."""
        self.faults = False
        for daemon in self.daemons:
            daemon.cut_off = daemon.beating = False
            if not daemon.up and not daemon.stopped:
                self.restart(daemon)
        for _ in range(SETTLE_ROUNDS_MAX):
            self.now_s = round(self.now_s + 0.5, 3)
            for daemon in self.daemons:
                daemon.beating = False
                self.beat(daemon)
                self.progress(daemon)
            self.retry_reports()
            while self.flights:
                self.flights.pop(0)()
            self.send(ev.Tick())
            if not self.open_wants() and not len(self.scheduler.state.leases):
                break
        assert self.starts, "nothing ever ran: this world shows nothing"
        assert not self.open_wants(), f"never served: {self.open_wants()}"
        assert not len(self.scheduler.state.leases), "leases that never end"
        assert not self.scheduler.state.runs
        assert not self.scheduler.state.preparations
        live = [record for record in self.scheduler.state.journal.live() if record.state is not ExecutionState.PENDING]
        assert not live, f"executions without an end: {live}"
        self.check_determinism()

    def check_determinism(self) -> None:
        numbers = itertools.count(self.life_leases_from + 1)
        again = Scheduler(self.limits, lambda: LeaseId(f"l{next(numbers)}"))
        for event, now_s, actions in self.trail:
            assert again.handle(event, now_s) == actions, "the same events led to other actions"


if __name__ == "__main__":
    for number in sys.argv[1:]:
        World(int(number)).run()
