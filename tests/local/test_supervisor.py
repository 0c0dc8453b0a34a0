"""What the supervisor does when its own work fails; whole clusters are in `test_cluster.py`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import Unavailable
from looseleaf.local import record, supervisor
from looseleaf.local.cluster import LocalCluster, wait_for
from looseleaf.local.plan import ClusterPlan, ServiceSpec
from looseleaf.local.process import rotate_log

LIMIT_S = 20.0
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def plan_of(tmp_path: Path) -> ClusterPlan:
    """One service that only sleeps."""
    spec = ServiceSpec("scheduler", 0, ["sh", "-c", "exec sleep 600"], f"unix:{tmp_path}/s.sock", str(tmp_path / "log"))
    return ClusterPlan(
        "c-test", str(tmp_path), str(tmp_path), "none", 0, False, [spec], {}, start_timeout_s=LIMIT_S,
        stop_timeout_s=LIMIT_S, restart_delay_s_min=0.0, restart_delay_s_max=0.0, log_bytes_max=1 << 20,
        log_level="info",
    )


async def until(condition: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(wait_for, condition, LIMIT_S)


async def test_supervisor_on_a_full_disk_goes_on_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise FULL

    async def serving(_address: str) -> bool:
        return True

    watcher = supervisor.Supervisor(plan_of(tmp_path))
    (service,) = watcher._services.values()
    service.start()
    monkeypatch.setattr(supervisor, "is_serving", serving)
    monkeypatch.setattr(record, "write_record", fail)
    watching = asyncio.create_task(watcher._watch(service))
    try:
        await until(lambda: service.record.state == "serving")
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", fail)
            os.kill(service.record.pid, signal.SIGKILL)
            await until(lambda: service.record.restarts >= 2)
        await until(lambda: service.alive)
        assert not watching.done()
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await service.stop(LIMIT_S)
        for fd in watcher._lifeline:
            os.close(fd)


def test_log_that_cannot_be_copied_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 20)

    def fail(*_args: Any) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fail)
        rotate_log(path, 10)
    assert path.stat().st_size == 20
    rotate_log(path, 10)
    assert (path.stat().st_size, (tmp_path / "a.log.1").stat().st_size) == (0, 20)


def test_supervisor_that_dies_at_once_fails_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    fds = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Unavailable, match="CLUSTER_START_FAILED: supervisor did not start: ended before"):
        LocalCluster.start(data=tmp_path / "d", device="none")
    monkeypatch.setattr(subprocess, "Popen", no_process)
    with pytest.raises(OSError, match="no process"):
        LocalCluster.start(data=tmp_path / "d", device="none")
    assert set(os.listdir("/proc/self/fd")) == fds


def no_process(*_args: Any, **_kwargs: Any) -> subprocess.Popen[bytes]:
    raise OSError("no process")
