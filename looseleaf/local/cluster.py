"""`LocalCluster`: a one-machine cluster as an object, embedded in its creator or detached from it.

    with LocalCluster.start(gpus=2, device="emulated", data=tmp_path) as cluster:
        scheduler = cluster.address("scheduler"); socket = cluster.kernel_socket("h0")
        cluster.kill("scheduler"); cluster.wait_serving("scheduler")

An embedded cluster ends with its creator, also when that is killed. A detached one (`looseleaf up`) goes on until
`stop`. All methods block; none needs an event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from looseleaf.config import ClusterConfig, default_data_dir
from looseleaf.config_load import load
from looseleaf.errors import InvalidArgument, NotFound, PreconditionFailed, Timeout, Unavailable
from looseleaf.local import record as records
from looseleaf.local.plan import ClusterPlan, child_environment, make_plan
from looseleaf.local.record import ClusterRecord, ServiceRecord
from looseleaf.local.sweep import sweep

POLL_INTERVAL_S: Final = 0.02
WAIT_TIMEOUT_S: Final = 60.0
# What a stop may take beyond the services' own limits.
STOP_EXTRA_S: Final = 15.0
# What an old cluster whose supervisor died may take to end by itself.
ORPHAN_GRACE_S: Final = 10.0
LOG_TAIL_LINES: Final = 20
LOG_TAIL_BYTES_MAX: Final = 64 << 10


class LocalCluster:
    """A cluster that is up. Make one with `start` or `attach`."""

    def __init__(
        self, run_dir: Path, owner: subprocess.Popen[bytes] | None = None, lifeline_fd: int | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._owner = owner
        self._lifeline_fd = lifeline_fd
        found = records.read_record(run_dir)
        if found is None:
            raise not_running(run_dir)
        self._last = found

    @classmethod
    def start(
        cls,
        config: ClusterConfig | None = None,
        *,
        detached: bool = False,
        commands: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> LocalCluster:
        """Returns when all services serve and the scheduler lists all hosts.

        `settings` are fields of ClusterConfig, for callers without a `config`. Raises PreconditionFailed
        CLUSTER_RUNNING if the data or run folder has a cluster, Unavailable CLUSTER_START_FAILED (fields service, log,
        log_tail) with nothing left running, InvalidArgument for settings that cannot be met. `commands` as in
        `make_plan`.
        """
        assert config is None or not settings, "settings belong into the config"
        plan = make_plan(config or cluster_config(settings), commands=commands)
        run_dir = Path(plan.run_dir)
        clear_dead(run_dir)
        # The data folder first: as a mere parent it would be made readable by others.
        for folder in (Path(plan.data), Path(plan.data) / "logs", run_dir):
            _make_folder(folder)
        process, ready_fd, lifeline_fd = _execute_supervisor(plan, detached)
        try:
            result = _read_result(ready_fd, plan.start_timeout_s + _stop_limit_s(plan.stop_timeout_s))
        except BaseException:
            # Such as an interrupt by the person.
            _give_up(plan, process, lifeline_fd)
            raise
        finally:
            os.close(ready_fd)
        if not result.get("ready"):
            _give_up(plan, process, lifeline_fd)
            raise _start_failed(plan, result)
        if detached:
            os.close(lifeline_fd)
            # Only the parent of the supervisor that left.
            process.wait()
            return cls(run_dir)
        return cls(run_dir, process, lifeline_fd)

    @classmethod
    def attach(cls, run_dir: Path) -> LocalCluster:
        """The running cluster of `run_dir`; raises NotFound CLUSTER_NOT_RUNNING."""
        found = records.read_record(run_dir)
        if found is None or not found.alive:
            raise not_running(run_dir)
        return cls(run_dir)

    @property
    def record(self) -> ClusterRecord:
        """The cluster as it is now; after the stop, as it last was."""
        found = records.read_record(self.run_dir)
        # The folder may have another cluster by now.
        if found is not None and found.cluster_id == self._last.cluster_id:
            self._last = found
        return self._last

    def address(self, service: str) -> str:
        """gRPC address of "checkpoint-store", "scheduler", "frontend" or "daemon-h0"."""
        return self._service(service).address

    def kernel_socket(self, host_id: str = "h0") -> Path:
        """Where kernels of that host connect."""
        return Path(self.record.kernel_sockets[host_id])

    def pid(self, service: str) -> int:
        """Process id, 0 while it is down."""
        return self._service(service).pid

    def log_tail(self, service: str, lines: int = LOG_TAIL_LINES) -> str:
        """The end of its log."""
        return tail(Path(self._service(service).log), lines)

    def kill(self, service: str) -> None:
        """SIGKILL; the supervisor starts it again."""
        self._signal(service, signal.SIGKILL)

    def pause(self, service: str) -> None:
        """SIGSTOP: it neither answers nor ends."""
        self._signal(service, signal.SIGSTOP)

    def resume(self, service: str) -> None:
        """SIGCONT."""
        self._signal(service, signal.SIGCONT)

    def restart(self, service: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """An orderly stop; returns when its successor serves. Raises Timeout SERVICE_NOT_SERVING."""
        before = self._service(service)
        self._signal(service, signal.SIGTERM)
        self.wait_serving(service, timeout_s, other_than=before.pid)

    def wait_serving(self, service: str, timeout_s: float = WAIT_TIMEOUT_S, other_than: int = 0) -> None:
        """Returns when the service serves, in a process other than `other_than`; raises Timeout SERVICE_NOT_SERVING."""

        def serves() -> bool:
            now = self._service(service)
            return now.state == "serving" and now.pid not in (0, other_than)

        if not wait_for(serves, timeout_s):
            text = f"{service} does not serve after {timeout_s:g} s; its log is {self._service(service).log}"
            raise Timeout("SERVICE_NOT_SERVING", text, service=service, log_tail=self.log_tail(service))

    def stop(self) -> list[str]:
        """Ends everything in order; returns what had to be removed by force. Idempotent."""
        last = self.record
        limit_s = _stop_limit_s(last.stop_timeout_s)
        if self._owner is not None:
            self._owner.terminate()
            try:
                self._owner.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._owner.kill()
                self._owner.wait()
        elif last.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(last.supervisor_pid, signal.SIGTERM)
                if not wait_for(lambda: not last.alive, limit_s):
                    os.kill(last.supervisor_pid, signal.SIGKILL)
        if self._lifeline_fd is not None:
            os.close(self._lifeline_fd)
            self._lifeline_fd = None
        left = sweep(last.cluster_id, self.run_dir)
        now = records.read_record(self.run_dir)
        if now is not None and now.cluster_id == last.cluster_id:
            records.remove_record(self.run_dir)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _service(self, name: str) -> ServiceRecord:
        services = self.record.services
        if name not in services:
            raise InvalidArgument("SERVICE_UNKNOWN", f"no service {name!r}; there are {', '.join(services)}")
        return services[name]

    def _signal(self, service: str, number: signal.Signals) -> None:
        down = PreconditionFailed("SERVICE_DOWN", f"{service} is not running now; wait until it serves")
        pid = self.pid(service)
        if pid == 0:
            raise down
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise down from None


def cluster_config(settings: Mapping[str, Any]) -> ClusterConfig:
    """The configured cluster with `settings` that are not None over it; raises ConfigError CONFIG_INVALID.

    A data folder that is named has its sockets in its own `run` folder: those that the environment or a file names
    belong to the cluster configured there.
    """
    chosen = {name: value for name, value in settings.items() if value is not None}
    if "data" in chosen and "run_dir" not in chosen:
        data = Path(chosen["data"]).expanduser().absolute()
        if data != default_data_dir():
            chosen["run_dir"] = data / "run"
    return load(ClusterConfig, chosen)


def _make_folder(folder: Path) -> None:
    """Makes it, readable by this user only; raises InvalidArgument CONFIG_INVALID."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        text = f"the folder {folder} cannot be made ({error.strerror}): name another with --data or LOOSELEAF_DATA"
        raise InvalidArgument("CONFIG_INVALID", text) from error


def clear_dead(run_dir: Path) -> None:
    """Makes room after a cluster whose supervisor was killed.

    Raises PreconditionFailed CLUSTER_RUNNING for one that is alive.
    """
    found = records.read_record(run_dir)
    if found is None:
        return
    if found.alive:
        raise PreconditionFailed(
            "CLUSTER_RUNNING",
            f"a cluster with data in {found.data} runs already (supervisor {found.supervisor_pid}): "
            "use it, or stop it with `looseleaf down`",
            data=found.data, supervisor_pid=found.supervisor_pid,
        )
    sweep(found.cluster_id, run_dir, grace_s=ORPHAN_GRACE_S)
    records.remove_record(run_dir)


def not_running(run_dir: Path) -> NotFound:
    """The error of everything that needs a running cluster."""
    return NotFound(
        "CLUSTER_NOT_RUNNING",
        f"no cluster runs with sockets in {run_dir}: start one with `looseleaf up`, or name its folder with --data or "
        "LOOSELEAF_DATA",
        run_dir=str(run_dir),
    )


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a file, at most LOG_TAIL_BYTES_MAX; empty if there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_TAIL_BYTES_MAX))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until `condition()`; False if it did not come true in time."""
    limit_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > limit_s:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _execute_supervisor(plan: ClusterPlan, detached: bool) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, the reading end of its result, and the writing end of its lifeline."""
    ready_read, ready_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    passed, kept = [ready_write, lifeline_read], [ready_read, lifeline_write]
    command = [
        sys.executable, "-m", "looseleaf.local.supervisor", "--ready-fd", str(ready_write),
        "--lifeline-fd", str(lifeline_read), *(["--detach"] if detached else []),
    ]
    try:
        with open(Path(plan.data) / "logs" / "supervisor.log", "ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=passed, start_new_session=True,
                env=child_environment(plan.cluster_id),
            )
        assert process.stdin is not None
        # A supervisor that died before it read its plan is found out by its silence.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(plan.to_json()).encode())
    except BaseException:
        for fd in kept:
            os.close(fd)
        raise
    finally:
        for fd in passed:
            os.close(fd)
    return process, ready_read, lifeline_write


def _stop_limit_s(stop_timeout_s: float) -> float:
    """What a whole stop may take: daemons together, then frontend, scheduler and store one after another."""
    return 4 * stop_timeout_s + STOP_EXTRA_S


def _give_up(plan: ClusterPlan, process: subprocess.Popen[bytes], lifeline_fd: int) -> None:
    """Ends a start that did not succeed: the supervisor sees its lifeline close, and stops what it started."""
    os.close(lifeline_fd)
    if not wait_for(lambda: not records.cluster_processes(plan.cluster_id), _stop_limit_s(plan.stop_timeout_s)):
        sweep(plan.cluster_id, Path(plan.run_dir))
    process.wait()


def _read_result(fd: int, timeout_s: float) -> dict[str, Any]:
    """The supervisor's one line; a pipe that closes without one means that it died."""
    data = b""
    limit_s = time.monotonic() + timeout_s
    while not data.endswith(b"\n"):
        readable, _, _ = select.select([fd], [], [], max(0.0, limit_s - time.monotonic()))
        chunk = os.read(fd, 65536) if readable else b""
        if not chunk:
            why = "ended before it said anything" if readable else f"said nothing within {timeout_s:g} s"
            return {"failed": "supervisor", "why": why, "log": ""}
        data += chunk
    result: dict[str, Any] = json.loads(data)
    return result


def _start_failed(plan: ClusterPlan, result: dict[str, Any]) -> Unavailable:
    path = Path(result["log"] or Path(plan.data) / "logs" / "supervisor.log")
    text = tail(path)
    return Unavailable(
        "CLUSTER_START_FAILED",
        f"{result['failed']} did not start: {result['why']}. Nothing was left running; saved state is untouched. "
        f"Its log is {path}",
        service=result["failed"], log=str(path), log_tail=text,
    )
