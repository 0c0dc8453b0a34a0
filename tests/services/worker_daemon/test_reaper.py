"""Real children: what the reaper tells of them, and whom it signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from daemon_fakes import until, within

from looseleaf.services.worker_daemon import reaper as reaper_module
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    made = Reaper()
    made.start()
    yield made
    made.stop()


def child(code: str, pass_fds: tuple[int, ...] = ()) -> int:
    """The pid of a process that only the reaper waits for."""
    process: Any = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, pass_fds=pass_fds)
    process.returncode = 0
    return int(process.pid)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", -9, "was killed by SIGKILL (often the system ran out of memory)"),
    ],
)
async def test_exit_status_tells_how_a_child_ended(reaper: Reaper, code: str, status: int, told: str) -> None:
    found = await within(reaper.exit_status(child(code)))
    assert found == status and describe_exit(found) == told


async def test_exit_before_anybody_asked_is_remembered_for_a_while(
    reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = child("raise SystemExit(5)"), child("raise SystemExit(6)")
    await until(lambda: len(reaper._early) == 2)
    assert [reaper.exit_status(first).result() for _ in range(2)] == [5, 5], "two may wait for one process"
    assert first not in reaper._waiting
    monkeypatch.setattr(reaper_module, "EARLY_EXIT_S", -1.0)
    assert not reaper.exit_status(second).done(), "by then the pid may be another process's"


async def test_early_exits_are_bounded(reaper: Reaper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "EARLY_EXITS_MAX", 2)
    for pid in range(5):
        reaper._ended(pid, 0)
    assert list(reaper._early) == [3, 4]


async def test_signal_after_the_end_goes_to_nobody(reaper: Reaper, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = child("import time; time.sleep(1000)")
    ended = reaper.exit_status(pid)
    reaper.signal(pid, signal.SIGKILL)
    assert await within(ended) == -9
    monkeypatch.setattr(os, "kill", lambda *_args: pytest.fail("the pid may be another process's"))
    reaper.signal(pid, signal.SIGKILL)


async def test_signal_to_a_number_that_no_process_has_is_lost(reaper: Reaper) -> None:
    pid = 2**22 + 1  # above what Linux gives
    ended = reaper.exit_status(pid)
    reaper.signal(pid, signal.SIGKILL)
    assert not ended.done()


async def test_child_that_nobody_asks_about_is_reaped(reaper: Reaper) -> None:
    pid = child("pass")
    await until(lambda: pid in reaper._early)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait


async def test_group_of_a_child_goes_with_it(reaper: Reaper) -> None:
    read_fd, write_fd = os.pipe()
    code = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen(['sleep', '1000'], pass_fds=[{write_fd}])\n"
        "os._exit(0)"
    )
    pid = child(code, (write_fd,))
    os.close(write_fd)
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(read_fd, gone.set)
    try:
        await within(reaper.exit_status(pid))
        await within(gone.wait())  # the pipe's last writer was the process that it left
    finally:
        loop.remove_reader(read_fd)
        os.close(read_fd)


def test_describe_exit_of_an_unnamed_signal_gives_its_number() -> None:
    assert describe_exit(-77) == "was killed by signal 77"
