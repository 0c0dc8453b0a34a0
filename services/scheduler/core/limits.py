"""Every bound and delay of the scheduler, by name."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.units import MIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the policy; the defaults are those of design §6 and research/provisioning.md §3."""

    # Runs that wait or are being granted; one more is refused with RUN_QUEUE_FULL.
    run_queue_max: int = 10_000
    runs_per_session_max: int = 64
    # Streams that wait for one execution.
    waiters_per_run_max: int = 16
    # Ended executions that the journal remembers; the oldest are forgotten first.
    journal_records_max: int = 20_000
    # Sessions whose epoch is remembered beyond their last lease, run or worker.
    sessions_max: int = 50_000
    hosts_known_max: int = 10_000
    # Kinds of hosts, by GPUs and memory, that are remembered beyond their life.
    host_shapes_max: int = 64
    # Superseded incarnations of one host that are still recognised as old.
    incarnations_max: int = 16
    # Speculative (prepared, never run) workers on one host.
    prepared_max_per_host: int = 8
    # A speculative worker without news for this long gives way to a newer one.
    speculative_expiry_s: float = 20.0
    # The furthest stage that preparations may reach; the service's setting is `prepare_up_to`.
    prepare_stage_max: WorkerStage = WorkerStage.HOST_READY
    # What Run waits for with a host_ready worker: a context and a copy; and what counts as no wait (design §6).
    context_s: float = 0.3
    copy_bytes_per_s: float = 20e9
    immediate_s: float = 0.05
    # Contexts of workers that only wait, on one GPU.
    contexts_per_gpu_max: int = 3
    # What one takes of a GPU's memory at most.
    context_bytes: int = 600 * MIB
    # After a preparation found no device to open, none of its session tries again for this long, or until its cell ran.
    device_retry_s: float = 30.0
    # GPU-seconds that a session may waste by data that lay on a device for nothing, and what each of its cells' adds to
    # it. Generous, since such a GPU is given to any Run at once: it bounds who pushes warm workers of others aside.
    waste_burst_gpu_s: float = 300.0
    waste_refill: float = 1.0
    # The part of the pool's GPUs, by its weight among tenants, on which a tenant's speculative workers may lie.
    tenant_speculation_share: float = 0.25
    # A session that needs ever new speculative workers waits so long between two, doubled each time.
    fork_pause_s_min: float = 2.0
    fork_pause_s_max: float = 16.0
    # Heartbeat age at which a host gets no new work, and at which its leases end.
    heartbeat_suspect_s: float = 3.0
    heartbeat_dead_s: float = 10.0
    # A dead host is forgotten after this long.
    host_forget_s: float = 600.0
    # A daemon counts it from the sending of the heartbeat whose answer renewed the lease, so it must not exceed
    # heartbeat_dead_s: the daemon stops starting cells before the scheduler gives its GPUs up.
    lease_ttl_s: float = 10.0
    # Heartbeats in a row without a lease or worker before it counts as gone; one may have been under way. A lease
    # must also have been out for missed_after_s, since a daemon may send two heartbeats at once.
    missed_heartbeats_max: int = 2
    missed_after_s: float = 1.0
    # A lease that was handed out and under which nothing started is taken back.
    start_timeout_s: float = 30.0
    # How long a restarted scheduler waits for the hosts it knew.
    ready_wait_s: float = 3.0
    # A batch run counts as arrived this much later: below interactive ones, yet never starved.
    batch_penalty_s: float = 120.0
    # Among tenants: half-life of what they used, what a GPU counts at once when it is leased, and how long a run waits
    # before its tenant's weight doubles, and before it goes first whatever its tenant used.
    fair_half_life_s: float = 1800.0
    fair_quantum_s: float = 8.0
    fair_double_after_s: float = 30.0
    fair_fifo_after_s: float = 120.0
    # Tenants that count for more or less than 1.
    tenant_weights: tuple[tuple[str, float], ...] = ()
    # GPUs that one tenant's cells may hold at a time, 0: all.
    tenant_gpus_max: int = 0
    # Ended leases after which people are told how long they will wait.
    estimate_leases_min: int = 3
    # A run of several GPUs that waited this long keeps one host's GPUs from later runs until it fits there.
    gang_patience_s: float = 10.0
    # What is in use on a GPU so long after our last worker left it is somebody else's: measurements come late. And how
    # long a cell waits for as much free memory as it was seen to use, before the room for its variables is enough.
    gpu_settle_s: float = 15.0
    memory_patience_s: float = 30.0
    # The queue is looked at at least this often: one forgotten reason to do so must not leave anybody waiting.
    look_again_s: float = 5.0
    # In a longer queue people are told of their places with the next tick, not after each event.
    news_at_once_max: int = 100
    revoke_retry_s: float = 1.0
    # A run known from the journal whose caller never came back is given up.
    pending_orphan_s: float = 60.0
    # Daemons' refusals of one run before the caller is told.
    grant_refusals_max: int = 20
    # Provisioning: hosts of `gpus_per_host` GPUs that there are at least and at most; at most 0: nobody starts or stops
    # hosts.
    hosts_min: int = 1
    hosts_max: int = 0
    gpus_per_host: int = 8
    # The target follows the highest demand of this long, plus a share of it, plus whole hosts. Speculation counts as
    # demand up to these hosts only.
    demand_peak_s: float = 300.0
    headroom_share: float = 0.0
    headroom_hosts: int = 1
    # After a start nothing is started so long: hosts that are on their way may come.
    provision_wait_s: float = 0.0
    # A surplus that lasted this long is drained.
    power_off_after_s: float = 120.0
    # Hosts with leases only then: one that takes no work while a long cell runs there is paid for little.
    drain_busy_after_s: float = 600.0
    # A host that was asked for counts as failed after this long.
    boot_timeout_s: float = 600.0
    # After a failure none of that kind is asked for this long, doubled with each further one up to the first maximum,
    # and no host of another kind makes way for one up to the second: it would go for nothing.
    boot_retry_s: float = 10.0
    boot_retry_s_max: float = 60.0
    displace_retry_s_max: float = 3600.0
    # Heartbeats in a row without anything at stake before a host that is to go is ended; one may have been under way.
    stop_heartbeats: int = 2
    # A provided host that is silent this long is ended; one that told of staged versions only when it is forgotten.
    silent_stop_after_s: float = 120.0
    # Workers whose end with unsaved variables is remembered, so that who asks for these is told of it.
    ended_holders_max: int = 4096
    # Half-life of a session's GPU-cell rate in the eviction priority.
    frequency_half_life_s: float = 1800.0
