"""One service of a cluster as a process: start, log, end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from looseleaf.local.plan import ClusterPlan, ServiceSpec, child_environment
from looseleaf.local.record import ServiceRecord
from looseleaf.local.restart import RestartDelay
from looseleaf.logs import get_logger

log = get_logger()


class ServiceProcess:
    """One service over all its lives."""

    def __init__(self, spec: ServiceSpec, plan: ClusterPlan, lifeline_fd: int) -> None:
        self.spec = spec
        self.record = ServiceRecord(address=spec.address, log=spec.log)
        self.delay = RestartDelay(plan.restart_delay_s_min, plan.restart_delay_s_max)
        self.started_s = 0.0
        self._plan = plan
        self._lifeline_fd = lifeline_fd
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Executes the service; its output goes to its log. Raises OSError if that cannot be."""
        self.started_s = time.monotonic()
        rotate_log(Path(self.spec.log), self._plan.log_bytes_max)
        with open(self.spec.log, "ab") as output:
            self._process = subprocess.Popen(
                [*self.spec.command, "--lifeline-fd", str(self._lifeline_fd)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[self._lifeline_fd],
                env=child_environment(self._plan.cluster_id), start_new_session=True,
            )
        self.record.pid = self._process.pid
        self.record.state = "starting"
        log.info("service_executed", name=self.spec.name, pid=self._process.pid)

    @property
    def alive(self) -> bool:
        """Its process runs; reaps it otherwise."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_text(self) -> str:
        """How the last life ended."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return "is running"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    async def exited(self) -> None:
        """Returns when the process has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        fd = os.pidfd_open(self._process.pid)
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        self._process.poll()

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL after `timeout_s`."""
        if self._process is not None and self.alive:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            try:
                async with asyncio.timeout(timeout_s):
                    await self.exited()
            except TimeoutError:
                log.error("service_killed", name=self.spec.name, pid=self._process.pid, after_s=timeout_s)
                self._process.kill()
                await self.exited()
        self.record.state = "stopped"
        self.record.pid = 0


def rotate_log(path: Path, bytes_max: int) -> None:
    """Copies a log that is too long to `*.log.1` and empties it in place: its writers append and go on.

    A disk without room for the copy puts it off.
    """
    try:
        if path.exists() and path.stat().st_size > bytes_max:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
    except OSError as error:
        log.warning("log_not_rotated", path=str(path), cause=str(error))
