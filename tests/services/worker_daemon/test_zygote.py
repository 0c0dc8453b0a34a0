"""Zygotes by script as real processes (fake_zygote.py): starts, forks, deaths and hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from daemon_fakes import until, within

from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.services.worker_daemon import zygote as zygote_module
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.zygote import Zygote, ZygoteSettings
from looseleaf.subreaper import become_subreaper

NewZygote = Callable[..., Awaitable[Zygote]]


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Stands for a Python interpreter: runs the fake zygote, whatever module it is told to run."""
    path = tmp_path / "python"
    fake = Path(__file__).parent / "fake_zygote.py"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    path.chmod(0o700)
    return str(path)


@pytest.fixture
async def new_zygote(interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NewZygote]:
    monkeypatch.setattr(zygote_module, "RESTART_DELAY_S_MIN", 0.001)
    monkeypatch.setattr(zygote_module, "EXIT_TIMEOUT_S", 0.2)
    become_subreaper()
    reaper = Reaper()
    reaper.start()
    made: list[Zygote] = []

    async def start(how: str, *, start_timeout_s: float = 20.0, python: str = interpreter) -> Zygote:
        monkeypatch.setenv("FAKE_ZYGOTE", how)
        log_path = str(tmp_path / "zygote.log")
        zygote = Zygote(ZygoteSettings(python, ("json", "math"), {}, log_path, start_timeout_s), reaper)
        made.append(zygote)
        await zygote.start()
        return zygote

    yield start
    for zygote in made:
        await zygote.stop()
    reaper.stop()


async def fork(zygote: Zygote) -> tuple[int, socket.socket]:
    """A worker's pid and our end of its channel."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        try:
            return await zygote.fork("ll-worker:w-1", {}, [theirs.fileno()] * 4), ours
        except BaseException:
            ours.close()
            raise


async def test_zygote_forks_a_worker_that_has_its_channel(new_zygote: NewZygote) -> None:
    zygote = await new_zygote("fork")
    assert zygote.imports == ("json", "math")
    pid, channel = await within(fork(zygote))
    with channel:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(channel, b"hello")
        assert pid > 0 and await within(loop.sock_recv(channel, 5)) == b"hello"


async def test_zygote_environment_has_one_thread_for_each_library() -> None:
    assert set(zygote_module.SINGLE_THREADED.values()) == {"1"}


@pytest.mark.parametrize(
    ("how", "reason", "said"),
    [("die", "ZYGOTE_FAILED", "zygote.log"), ("unclean", "ZYGOTE_FAILED", "FORBIDDEN_MODULE: ray")],
)
async def test_start_that_fails_says_why_and_leaves_no_process(
    new_zygote: NewZygote, how: str, reason: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=f"{reason}.*{said}"):
        await within(new_zygote(how))
    assert "the fake zygote says" in (tmp_path / "zygote.log").read_text()


@pytest.mark.parametrize(
    ("how", "imports"),
    [("unclean:math", ("json",)), ("crash:math", ("json",)), ("unclean:json,math", ("numpy",))],
)
async def test_first_start_goes_without_the_imports_that_make_it_fail(
    new_zygote: NewZygote, how: str, imports: tuple[str, ...]
) -> None:
    zygote = await within(new_zygote(how))
    assert zygote.imports == imports
    _pid, channel = await within(fork(zygote))
    channel.close()


async def test_first_start_goes_without_an_import_that_hangs(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_module, "IMPORT_SHARE", 0.001)
    zygote = await within(new_zygote("stuck:math"))
    assert zygote.imports == ("json",)


async def test_start_that_takes_too_long_is_given_up(new_zygote: NewZygote) -> None:
    with pytest.raises(Timeout, match="ZYGOTE_TIMEOUT"):
        await within(new_zygote("mute", start_timeout_s=0.05))


async def test_start_without_an_interpreter_says_so(new_zygote: NewZygote, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="ZYGOTE_FAILED.*interpreter"):
        await new_zygote("fork", python=str(tmp_path / "nobody"))


async def test_fork_that_is_refused_says_why(new_zygote: NewZygote) -> None:
    zygote = await new_zygote("refuse")
    with pytest.raises(Unavailable, match="FORK_FAILED.*no memory"):
        await within(fork(zygote))


async def test_zygote_that_dies_in_a_fork_fails_it_at_once_and_comes_back(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = await new_zygote("once")
    first = zygote.pid
    monkeypatch.setenv("FAKE_ZYGOTE", "fork")
    with pytest.raises(Unavailable, match="ZYGOTE_FAILED"):
        await within(fork(zygote))
    pid, channel = await within(fork(zygote))  # waits for the new one
    channel.close()
    assert pid > 0 and zygote.pid != first


async def test_zygote_that_hangs_is_killed_and_replaced(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_module, "FORK_TIMEOUT_S", 0.05)
    zygote = await new_zygote("hang")
    monkeypatch.setenv("FAKE_ZYGOTE", "fork")
    with pytest.raises(Timeout, match="ZYGOTE_TIMEOUT"):
        await within(fork(zygote))
    monkeypatch.setattr(zygote_module, "FORK_TIMEOUT_S", 20.0)
    _pid, channel = await within(fork(zygote))
    channel.close()


async def test_stopped_zygote_is_found_by_the_look_at_its_memory(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_module, "STAT_TIMEOUT_S", 0.05)
    zygote = await new_zygote("hang")
    first = zygote.pid
    down: list[bool] = []
    zygote.on_down = down.append
    monkeypatch.setenv("FAKE_ZYGOTE", "fork")
    for _ in range(zygote_module.STATS_UNANSWERED_MAX):
        assert not down
        with pytest.raises(Timeout, match="ZYGOTE_TIMEOUT"):
            await zygote.pss_bytes()
    await until(lambda: down == [False] and zygote._serving.is_set())
    assert zygote.pid != first


async def test_killed_zygote_that_cannot_start_again_is_tried_until_it_can(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_module, "RESTART_WAIT_S", 0.05)
    zygote = await new_zygote("fork")
    monkeypatch.setenv("FAKE_ZYGOTE", "die")
    os.kill(zygote.pid, signal.SIGKILL)
    await until(lambda: not zygote._serving.is_set())
    with pytest.raises(Unavailable, match="ZYGOTE_DOWN.*again in a few seconds"):
        await within(fork(zygote))
    monkeypatch.setattr(zygote_module, "RESTART_WAIT_S", 20.0)
    monkeypatch.setenv("FAKE_ZYGOTE", "fork")
    _pid, channel = await within(fork(zygote))
    channel.close()


@pytest.mark.parametrize(("how", "failures"), [("unclean", 1), ("crash", 2)])
async def test_restart_leaves_out_the_import_that_made_a_start_fail(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch, how: str, failures: int
) -> None:
    """At once if it is known to be at fault; the second time if a start only ended there, as by lack of memory."""
    zygote = await new_zygote("fork")
    down: list[bool] = []

    def on_down(hopeless: bool) -> None:
        down.append(hopeless)
        # All is well without the import.
        monkeypatch.setenv("FAKE_ZYGOTE", how if zygote.settings.imports == ("json", "math") else "fork")

    zygote.on_down = on_down
    os.kill(zygote.pid, signal.SIGKILL)
    await until(lambda: zygote.imports == ("json",) and zygote._serving.is_set())
    assert not down[0] and down.count(True) >= failures


async def test_zygote_that_dies_again_soon_is_not_waited_for(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = await new_zygote("fork")
    down: list[bool] = []
    zygote.on_down = down.append
    for told in ([False], [False, False, True]):
        dead = zygote.pid
        os.kill(dead, signal.SIGKILL)
        await until(lambda: zygote.pid != dead and zygote._serving.is_set())  # noqa: B023
        assert down == told


async def test_stop_ends_the_zygote_and_no_fork_follows(
    new_zygote: NewZygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_module, "RESTART_WAIT_S", 0.01)
    zygote = await new_zygote("fork")
    await within(zygote.stop())
    with pytest.raises(ProcessLookupError):
        os.kill(zygote.pid, 0)
    with pytest.raises(LooseLeafError, match="ZYGOTE_DOWN"):
        await fork(zygote)
