"""Starts the scheduler: opens the journal, restores the policy, serves."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.clock import SystemClock
from looseleaf.config import SchedulerConfig
from looseleaf.ids import new_lease_id
from looseleaf.kv import open_kv
from looseleaf.logs import get_logger
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.policy import Scheduler
from looseleaf.services.scheduler.daemons import DaemonOrders
from looseleaf.services.scheduler.driver import Driver
from looseleaf.services.scheduler.host_provider import LocalHosts
from looseleaf.services.scheduler.journal_store import JournalStore
from looseleaf.services.scheduler.metrics import SchedulerMetrics
from looseleaf.services.scheduler.run_log import RunLog
from looseleaf.services.scheduler.run_recorder import RunRecorder
from looseleaf.services.scheduler.servicer import SchedulerServicer
from looseleaf.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server

log = get_logger()


def limits_of(config: SchedulerConfig) -> Limits:
    """The policy's bounds as configured."""
    return Limits(
        run_queue_max=config.queued_runs_max,
        runs_per_session_max=config.queued_runs_per_session_max,
        journal_records_max=config.journal_executions_max,
        prepared_max_per_host=config.preparations_per_host_max,
        prepare_stage_max=WorkerStage[config.prepare_up_to.upper()],
        speculative_expiry_s=config.speculation_expiry_s,
        heartbeat_suspect_s=config.suspect_after_s,
        heartbeat_dead_s=config.dead_after_s,
        lease_ttl_s=config.lease_ttl_ms / 1000,
        start_timeout_s=config.start_timeout_s,
        ready_wait_s=config.first_round_s,
        tenant_weights=tuple(sorted(config.tenant_weights.items())),
        tenant_gpus_max=config.tenant_gpus_max,
        hosts_min=config.hosts_min,
        # Without somebody who starts and ends them there is nothing to decide.
        hosts_max=config.hosts_max if config.hosts_socket is not None else 0,
        gpus_per_host=config.gpus_per_host,
        headroom_hosts=config.headroom_hosts,
        headroom_share=config.headroom_share,
        demand_peak_s=config.demand_peak_s,
        provision_wait_s=config.provision_wait_s,
        power_off_after_s=config.power_off_after_s,
        boot_timeout_s=config.boot_timeout_s,
    )


async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
    """Wires the service; the policy's first event is what the journal holds."""
    config = service.config
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    kv = await service.run_blocking(open_kv, config.data / "journal", config.database)
    store = JournalStore(kv)

    async def close_store() -> None:
        await service.run_blocking(store.close)

    service.on_stop(close_store)
    restored = await service.run_blocking(store.load)
    log.info("journal_loaded", executions=len(restored.executions), hosts=len(restored.hosts))

    def open_to(target: str, peer: str) -> Channel:
        return open_channel(target, peer, message_bytes_max=config.message_bytes_max)

    orders = DaemonOrders(open_to, config.grant_timeout_s, config.prepare_timeout_s)
    scheduler = Scheduler(limits_of(config), new_lease_id)
    run_log = _run_log(service, scheduler)
    driver = Driver(
        scheduler, store, orders, SystemClock(), service.run_blocking,
        service.start_task, SchedulerMetrics(service.registry),
        provider=LocalHosts(config.hosts_socket) if config.hosts_socket is not None else None,
        run_log=run_log,
    )
    service.on_stop(orders.aclose)
    service.on_stopping(driver.stop_callers)
    service.start_task(driver.run(restored), name="events")
    service.start_task(driver.tick_forever(config.tick_s), name="ticks")
    return [Registration(add_SchedulerServiceServicer_to_server, SchedulerServicer(driver))]


def _run_log(service: Service[SchedulerConfig], scheduler: Scheduler) -> RunLog | None:
    """The log that the settings ask for, written beside everything else; what still waits is written at the stop."""
    config = service.config
    if config.run_log is None:
        return None
    recorder = RunRecorder(scheduler.execution, scheduler.state.limits.speculative_expiry_s)
    run_log = RunLog(config.run_log, config.run_log_bytes_max, recorder, service.run_blocking)
    service.start_task(run_log.write_forever(), name="run_log")
    service.on_stop(run_log.flush)
    return run_log


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the scheduler until it is told to stop; returns the exit code."""
    return service_main("scheduler", SchedulerConfig, build, argv)
