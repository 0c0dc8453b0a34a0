"""The clients of a random world: kernels that ask, leave, ask twice, and start what they got a lease for."""

from __future__ import annotations

from looseleaf.ids import Epoch, ExecutionId, SessionId, Version, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, Lease, Need, RecipeFacts, WorkerReport, WorkerStage
from tests.services.scheduler.core.random_daemons import DaemonSide
from tests.services.scheduler.core.random_parts import Want
from tests.services.scheduler.core.random_state import LIMITS


class ClientSide(DaemonSide):
    """Each session is one client; its tenant is one of two."""

    def ask(self, want: Want) -> None:
        want.asked = f"q{next(self.names)}"
        recipe = RecipeFacts(
            f"hash-{want.execution_id}", Version(1), gpu_count=want.gpus, device_bytes=want.device_bytes,
            peak_bytes=want.peak_bytes)
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
        daemon = self.daemon(lease.host_id)
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

    def new_run(self) -> None:
        session = self.random.choice(list(self.epochs))
        want = Want(f"x{next(self.names)}", session, self.epochs[session], self.random.choice((1, 1, 1, 2)))
        want.device_bytes = want.gpus * self.memory.choice((0, 0, 1, 20, 30))
        want.peak_bytes = want.gpus * self.memory.choice((0, 0, 25, 60))
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
            RecipeFacts(
                f"hash-{self.random.randrange(5)}", Version(1), frozenset({"a"}),
                device_bytes=self.memory.choice((0, 1, 30)), peak_bytes=self.memory.choice((0, 60))),
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
