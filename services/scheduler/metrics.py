"""Prometheus figures of the scheduler: the pool now, and what was granted, refused and lost."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from looseleaf.rpc.metrics import prepare_seconds
from looseleaf.services.scheduler.core.actions import (
    Action,
    EvictWorker,
    MarkHostDead,
    NotifyLease,
    PrepareWorker,
    Refuse,
)
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.services.scheduler.core.speculation import SpeculationTotals


class SchedulerMetrics:
    """Kept from the action lists, so that the policy knows nothing of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queued = Gauge("looseleaf_queue_depth", "Runs that wait for a GPU", registry=registry)
        self.gpus = Gauge("looseleaf_scheduler_gpus", "GPUs of the hosts that are known", registry=registry)
        self.leases = Gauge("looseleaf_scheduler_leases", "Leases that occupy GPUs", registry=registry)
        self.hosts = Gauge("looseleaf_scheduler_hosts", "Hosts that are known", registry=registry)
        self.leased = Counter(
            "looseleaf_gpu_leased_seconds", "GPU-seconds of leases, from grant to release", registry=registry)
        self._leased_s: float | None = None
        self.booting = Gauge(
            "looseleaf_scheduler_hosts_booting", "Hosts that were asked for and have not come", registry=registry)
        self.not_ended = Gauge(
            "looseleaf_scheduler_hosts_not_ended", "Hosts to be ended whose provider refuses: paid for, of no use",
            registry=registry)
        self.provisioned = Counter(
            "looseleaf_gpu_provisioned_seconds", "GPU-seconds that are paid for, by what the GPU did", ["state"],
            registry=registry)
        self.wasted = Counter(
            "looseleaf_scheduler_preparations_wasted", "Preparations that came to nothing", registry=registry)
        self.opened = Counter(
            "looseleaf_scheduler_preparations_opened", "Times that a device was opened for a worker before Run",
            ["stage"], registry=registry)
        self.opened_used = Counter(
            "looseleaf_scheduler_preparations_opened_used", "Those whose cell then ran there", ["stage"],
            registry=registry)
        self.wasted_gpu = Counter(
            "looseleaf_gpu_speculation_wasted_seconds", "GPU-seconds of data that lay on a device for nothing",
            registry=registry)
        self.wasted_contexts = Counter(
            "looseleaf_scheduler_contexts_wasted", "Contexts opened before Run that no cell came to",
            registry=registry)
        self.wasted_contexts_s = Counter(
            "looseleaf_scheduler_contexts_wasted_seconds", "How long these had waited, each GPU counted",
            registry=registry)
        self._counted: dict[str, float] = {}
        self._prepare = prepare_seconds(registry)
        self.handed_out = Counter(
            "looseleaf_scheduler_leases_handed_out", "Leases that callers got, by what the cell found ready", ["path"],
            registry=registry)
        self.refused = Counter(
            "looseleaf_scheduler_refusals", "Requests refused by the policy", ["reason"], registry=registry)
        self.prepared = Counter(
            "looseleaf_scheduler_preparations", "Workers ordered to be prepared", registry=registry)
        self.evicted = Counter("looseleaf_scheduler_evictions", "Workers asked to go", registry=registry)
        self.lost = Counter("looseleaf_scheduler_hosts_lost", "Hosts whose leases ended", ["reason"], registry=registry)

    def observe(self, scheduler: Scheduler, actions: Sequence[Action], now_s: float) -> None:
        """Counts one batch of actions and looks at the state after it."""
        for action in actions:
            match action:
                case NotifyLease():
                    self.handed_out.labels(action.lease.path.name).inc()
                case Refuse():
                    self.refused.labels(action.reason).inc()
                case PrepareWorker():
                    self.prepared.inc()
                case EvictWorker():
                    self.evicted.inc()
                case MarkHostDead():
                    self.lost.labels(action.reason).inc()
        state = scheduler.state
        self.queued.set(len(state.queue))
        self.leases.set(len(state.leases))
        self.hosts.set(len(state.hosts))
        self.gpus.set(sum(host.gpu_count for host in state.hosts))
        self.booting.set(state.boots.count)
        self.not_ended.set(state.host_ends.failing)
        for name, gpu_s in state.provisioned.gpu_s.items():
            self._count(self.provisioned.labels(name), name, gpu_s)
        self._count_speculation(state.speculation.totals)
        self._count_leased(state.accounts.held_gpu_s(state.leases, now_s))

    def _count_speculation(self, totals: SpeculationTotals) -> None:
        self._count(self.wasted, "preparations wasted", totals.wasted)
        self._count(self.wasted_gpu, "speculation wasted", totals.wasted_gpu_s)
        self._count(self.wasted_contexts, "contexts wasted", totals.contexts_wasted)
        self._count(self.wasted_contexts_s, "contexts' time wasted", totals.wasted_context_s)
        for stage, opened, used in (
            ("context_ready", totals.contexts, totals.contexts_used),
            ("device_ready", totals.on_device, totals.on_device_used),
        ):
            self._count(self.opened.labels(stage), f"{stage} opened", opened)
            self._count(self.opened_used.labels(stage), f"{stage} used", used)

    def waited(self, wait_s: float) -> None:
        """A run got its lease so long after it asked."""
        self._prepare.labels("queue").observe(wait_s)

    def _count(self, counter: Counter, name: str, total: float) -> None:
        """Brings a counter up to a sum that the policy keeps from the process's beginning."""
        counter.inc(max(0.0, total - self._counted.get(name, 0.0)))
        self._counted[name] = total

    def _count_leased(self, since_first_start_s: float) -> None:
        """The sum outlives the process; the counter begins at 0 with it, as counters do."""
        before_s = since_first_start_s if self._leased_s is None else self._leased_s
        self.leased.inc(max(0.0, since_first_start_s - before_s))
        self._leased_s = max(before_s, since_first_start_s)
