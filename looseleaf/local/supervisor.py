"""The supervisor: a process that only starts, watches, restarts and stops the services of one machine.

It reads its plan as JSON from stdin, holds DATA/cluster.lock while it lives, and writes `cluster.json` at each change.
Each service gets the reading end of a pipe whose only writer is the supervisor, so that a supervisor's death, also by
SIGKILL, ends them all. As subreaper it also reaps workers whose daemon died.

Result of the start, one JSON line on `--ready-fd`: {"ready": true} or {"failed": service, "why": text, "log": path}.
Exit codes: 0 stopped as told, 1 the start failed, 4 another supervisor holds this data folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from looseleaf.errors import LooseLeafError
from looseleaf.folder_lock import lock_folder
from looseleaf.local import record as records
from looseleaf.local.host_pool import HostPool
from looseleaf.local.plan import DAEMON_PREFIX, SCHEDULER, ClusterPlan
from looseleaf.local.probe import is_serving, pool_problem
from looseleaf.local.process import ServiceProcess, rotate_log
from looseleaf.local.sweep import sweep
from looseleaf.logs import configure_logs, get_logger

EXIT_START_FAILED: Final = 1
EXIT_LOCKED: Final = 4
PROBE_INTERVAL_S: Final = 0.05
WATCH_INTERVAL_S: Final = 2.0
REAP_INTERVAL_S: Final = 1.0
_PR_SET_CHILD_SUBREAPER: Final = 36

log = get_logger()


class StartFailedError(Exception):
    """A service did not come up."""

    def __init__(self, service: str, why: str, log_path: str) -> None:
        super().__init__(f"{service}: {why}")
        self.wire = {"failed": service, "why": why, "log": log_path}


class Supervisor:
    """The life of a cluster."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self._run_dir = Path(plan.run_dir)
        self._stop = asyncio.Event()
        self._lifeline = os.pipe()
        self._pool_problem = ("the pool is not complete", "")
        self._services = {spec.name: ServiceProcess(spec, plan, self._lifeline[0]) for spec in plan.services}
        standby = {
            service.spec.host_id: service for service in self._services.values()
            if service.spec.host_id in plan.standby}
        # Services that run for the cluster's whole life.
        self._lasting = [service for service in self._services.values() if service.spec.host_id not in standby]
        self._pool = HostPool(
            standby, self._watch, self._update, plan.gpus_per_host, plan.host_boot_s, plan.stop_timeout_s)
        self._record = records.ClusterRecord(
            cluster_id=plan.cluster_id, supervisor_pid=os.getpid(),
            supervisor_started_s=records.process_started_s(os.getpid()), state="starting", data=plan.data,
            run_dir=plan.run_dir, device=plan.device, gpus_per_host=plan.gpus_per_host, hosts=plan.host_ids,
            kernel_sockets=plan.kernel_sockets, started_unix_ms=time.time_ns() // 1_000_000,
            services={name: service.record for name, service in self._services.items()},
            stop_timeout_s=plan.stop_timeout_s, emulated_delays=plan.emulated_delays,
        )

    def request_stop(self, why: str) -> None:
        """Begins the orderly stop."""
        log.info("cluster_stop_requested", why=why)
        self._stop.set()

    async def run(self, announce: Any) -> int:
        """Starts everything, says so through `announce(dict)`, watches until told to stop, stops everything."""
        self._write("starting")
        stopping = asyncio.create_task(self._stop.wait())
        starting = asyncio.create_task(self._start_all())
        watchers: list[asyncio.Task[None]] = []
        hosts_server = await self._serve_hosts()
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise StartFailedError("supervisor", "was told to stop during the start", "")
            starting.result()
            self._write("ready")
            log.info("cluster_started", hosts=self.plan.host_ids, device=self.plan.device)
            announce({"ready": True})
            watchers = [asyncio.create_task(self._watch(service)) for service in self._lasting]
            watchers.append(asyncio.create_task(self._reap_orphans()))
            done, _pending = await asyncio.wait({stopping, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
        except StartFailedError as error:
            log.error("cluster_start_failed", **error.wire)
            await self._stop_all([*watchers, starting, stopping])
            announce(error.wire)
            return EXIT_START_FAILED
        finally:
            if hosts_server is not None:
                hosts_server.close()
                _remove(self.plan.hosts_socket)
            await self._stop_all([*watchers, starting, stopping])
        log.info("cluster_stopped")
        return 0

    async def _serve_hosts(self) -> asyncio.Server | None:
        """Lets the scheduler start and end hosts, if some stand by. We hold the data's lock: an old socket is dead."""
        if not self.plan.standby:
            return None
        _remove(self.plan.hosts_socket)
        return await self._pool.serve(Path(self.plan.hosts_socket))

    async def _start_all(self) -> None:
        try:
            async with asyncio.timeout(self.plan.start_timeout_s):
                for level in sorted({service.spec.level for service in self._lasting}):
                    members = [service for service in self._lasting if service.spec.level == level]
                    for service in members:
                        service.start()
                    self._write()
                    for service in members:
                        await self._wait_serving(service)
                    self._write()
                await self._wait_pool()
        except TimeoutError:
            late = [service for service in self._lasting if service.record.state != "serving"]
            why, host_id = ("it does not say SERVING", "") if late else self._pool_problem
            culprit = late[0] if late else self._services[DAEMON_PREFIX + host_id if host_id else SCHEDULER]
            text = f"after {self.plan.start_timeout_s:g} s {why}"
            raise StartFailedError(culprit.spec.name, text, culprit.spec.log) from None

    async def _wait_serving(self, service: ServiceProcess) -> None:
        while not await is_serving(service.spec.address):
            self._check_alive()
            await asyncio.sleep(PROBE_INTERVAL_S)
        service.record.state = "serving"

    async def _wait_pool(self) -> None:
        address = self._services[SCHEDULER].spec.address
        while (problem := await pool_problem(address, self.plan.host_ids)) != ("", ""):
            self._pool_problem = problem
            self._check_alive()
            await asyncio.sleep(PROBE_INTERVAL_S)

    def _check_alive(self) -> None:
        """Raises StartFailedError if a service that was started has ended."""
        for service in self._lasting:
            if service.record.pid and not service.alive:
                raise StartFailedError(service.spec.name, service.exit_text, service.spec.log)

    async def _watch(self, service: ServiceProcess) -> None:
        """Keeps one service running, and its state in the record true."""
        while True:
            exited = asyncio.create_task(service.exited())
            try:
                while not exited.done():
                    await self._probe(service)
                    interval_s = PROBE_INTERVAL_S if service.record.state == "starting" else WATCH_INTERVAL_S
                    rotate_log(Path(service.spec.log), self.plan.log_bytes_max)
                    await asyncio.wait({exited}, timeout=interval_s)
            finally:
                exited.cancel()
            delay_s = service.delay.after_exit(service.started_s, time.monotonic())
            service.record.last_exit, service.record.state, service.record.pid = service.exit_text, "waiting", 0
            log.error("service_lost", name=service.spec.name, how=service.exit_text, restart_in_s=delay_s)
            self._update()
            await asyncio.sleep(delay_s)
            service.record.restarts += 1
            try:
                service.start()
            except OSError as error:
                # Such as a lack of memory: the next turn tries again after its delay.
                log.error("service_not_executed", name=service.spec.name, cause=str(error))
            self._update()

    async def _probe(self, service: ServiceProcess) -> None:
        before = service.record.state
        if await is_serving(service.spec.address):
            service.record.state = "serving"
        elif before == "serving":
            service.record.state = "unresponsive"
        if service.record.state != before:
            log.info("service_state_changed", name=service.spec.name, state=service.record.state)
            self._update()

    async def _reap_orphans(self) -> None:
        while True:
            reap_orphans({service.record.pid for service in self._services.values()})
            await asyncio.sleep(REAP_INTERVAL_S)

    async def _stop_all(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Daemons, frontend, scheduler, store; then what they may have left. Idempotent."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.aclose()
        if not any(service.alive for service in self._services.values()) and self._record.state == "stopping":
            return
        self._update("stopping")
        daemons = [service for service in self._services.values() if service.spec.host_id]
        await asyncio.gather(*(service.stop(self.plan.stop_timeout_s) for service in daemons))
        for service in reversed([service for service in self._services.values() if not service.spec.host_id]):
            await service.stop(self.plan.stop_timeout_s)
        await asyncio.to_thread(sweep, self.plan.cluster_id, self._run_dir)
        records.remove_record(self._run_dir)

    def _write(self, state: str = "") -> None:
        self._record.state = state or self._record.state
        records.write_record(self._run_dir, self._record)

    def _update(self, state: str = "") -> None:
        """As `_write`, for a cluster that is up: a full disk must not end it."""
        try:
            self._write(state)
        except OSError as error:
            log.error("record_not_written", cause=str(error))


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def reap_orphans(own_pids: set[int]) -> None:
    """Reaps zombies of workers that lost their daemon; never one of `own_pids`, whose exit code its Popen needs."""
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in own_pids:
                return
            os.waitpid(found.si_pid, 0)


def lock_data(data: Path) -> IO[str] | None:
    """Takes DATA/cluster.lock for the life of the returned file, or returns None if another supervisor has it."""
    return lock_folder(data, "cluster.lock")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of `python -m looseleaf.local.supervisor`."""
    parser = argparse.ArgumentParser(prog="looseleaf-supervisor")
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True, help="a pipe that closes when the owner is gone")
    parser.add_argument("--detach", action="store_true", help="heed the lifeline during the start only")
    args = parser.parse_args(argv)
    os.umask(0o077)
    plan = ClusterPlan.from_json(json.load(sys.stdin))
    configure_logs("supervisor", plan.log_level)
    for fd in (args.ready_fd, args.lifeline_fd):
        os.set_inheritable(fd, False)
    if args.detach and os.fork() > 0:
        # Nothing but imports has happened: the child may use threads and gRPC.
        os._exit(0)
    _be_subreaper()

    def announce(result: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            # Whoever started us may be gone; the record says the same.
            os.write(args.ready_fd, json.dumps(result).encode() + b"\n")
            os.close(args.ready_fd)

    lock = lock_data(Path(plan.data))
    if lock is None:
        announce({"failed": "supervisor", "why": f"another cluster uses {plan.data}", "log": ""})
        return EXIT_LOCKED
    with lock:
        try:
            return asyncio.run(_supervise(plan, args.lifeline_fd, args.detach, announce))
        except LooseLeafError as error:
            announce({"failed": "supervisor", "why": str(error), "log": ""})
            return EXIT_START_FAILED


async def _supervise(plan: ClusterPlan, lifeline_fd: int, detach: bool, announce: Any) -> int:
    for folder in (Path(plan.run_dir), Path(plan.data) / "logs"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    supervisor = Supervisor(plan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.request_stop, number.name)

    def owner_gone() -> None:
        loop.remove_reader(lifeline_fd)
        supervisor.request_stop("owner_gone")

    def announce_and_part(result: dict[str, Any]) -> None:
        if detach:
            loop.remove_reader(lifeline_fd)
        announce(result)

    loop.add_reader(lifeline_fd, owner_gone)
    return await supervisor.run(announce_and_part)


def _be_subreaper() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
