"""What a random world consists of, and its limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionRecord, HostRecord, SessionRecord, Totals, WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from tests.services.scheduler.core.random_parts import CONTEXT_BYTES, Daemon, Want

# How long a worker is kept for variables that no version has.
HOLD_S = 3.0
# `look_again_s` is off: it would hide a reason to look at the queue that the policy forgot. Whoever may be passed over
# is for seconds, not for minutes.
LIMITS = Limits(
    run_queue_max=40, journal_records_max=1000, gang_patience_s=2.0, pending_orphan_s=1e9, look_again_s=1e9,
    batch_penalty_s=5.0, fair_double_after_s=4.0, fair_fifo_after_s=8.0, start_timeout_s=5.0,
    memory_patience_s=3.0, gpu_settle_s=1.0, context_bytes=CONTEXT_BYTES)


def limits_of(seed: int) -> Limits:
    """Those of one world.

    In every second one devices are opened before Run, and, but in `quiet` ones, hosts started and ended by demand. The
    queue is long in every fifth only, where people are told of their places after each event, since both make events
    dear.
    """
    limits = LIMITS if seed % 5 == 0 else replace(LIMITS, run_queue_max=12, news_at_once_max=0)
    if seed % 2:
        return limits
    furthest = WorkerStage.DEVICE_READY if seed % 4 else WorkerStage.CONTEXT_READY
    # One in every eighth: there hosts are full of prepared workers.
    limits = replace(
        limits, prepared_max_per_host=LIMITS.prepared_max_per_host if seed % 8 else 1, prepare_stage_max=furthest,
        contexts_per_gpu_max=1 + seed % 8 // 4, speculative_expiry_s=2.0)
    if quiet(seed):
        return replace(limits, speculative_expiry_s=0.5)
    return replace(
        limits, hosts_max=3, gpus_per_host=1, headroom_hosts=0, demand_peak_s=3.0, power_off_after_s=2.0,
        boot_timeout_s=20.0, boot_retry_s=1.0)


def quiet(seed: int) -> bool:
    """In every eighth world few run cells, and hosts stay: GPUs are idle, so that edits get their data laid on them."""
    return seed % 8 == 6


class WorldState:
    """Everything outside the policy, driven by one seeded generator; its sides are the classes that follow."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.limits = limits_of(seed)
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.names = itertools.count(1)
        self.lease_numbers = itertools.count(1)
        # Of what GPUs hold, and cells need there.
        self.memory = random.Random(f"memory {seed}")
        self.daemons = [
            Daemon("h0", 2, gpu_memory_bytes=80), Daemon("h1", 1, gpu_memory_bytes=24),
            Daemon("h2", 1, gpu_memory_bytes=40)]
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

    # --- the scheduler's process ---

    def send(self, event: ev.Event) -> None:
        """Something happens to the scheduler."""
        raise NotImplementedError

    def reply(self, make: Callable[[], ev.Event]) -> Callable[[], None]:
        """An answer that counts only in the life that asked."""
        raise NotImplementedError

    def daemon(self, host_id: str) -> Daemon:
        return next(daemon for daemon in self.daemons if daemon.host_id == host_id)
