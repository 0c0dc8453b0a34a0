"""Thousands of workers that come and are killed at any moment leave nothing (import-cache study §6)."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.units import KIB, MIB

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3_600)]

FORKS = 2_000
SEED = 20_261_201
# One zygote in so many forks is killed too, with workers that it has forked.
ZYGOTE_KILLED_EVERY = 100
ALIVE_MAX = 16
# What an allocator may keep of a few hundred forks.
GROWTH_BYTES_MAX = 24 * MIB


def anonymous_bytes(pid: int) -> int:
    """Its own memory, also what it shares with those that it forked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("RssAnon:"))


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def fds(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Crowd:
    """Workers that live, as (pid, channel); ends them in all the ways in which workers end."""

    def __init__(self, rng: random.Random) -> None:
        self.alive: list[tuple[int, socket.socket]] = []
        self._rng = rng

    def end_one(self) -> None:
        pid, channel = self.alive.pop(self._rng.randrange(len(self.alive)))
        way = self._rng.choice(["kill", "stop", "close", "hello", "nonsense"])
        if way == "hello":
            channel.recv(4096)
        if way == "nonsense":
            channel.sendall(b"\xff" * 64)
        if way == "stop":
            os.kill(pid, signal.SIGSTOP)
        if way in ("close", "nonsense"):
            channel.close()
        else:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        channel.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a zygote")
def test_forks_with_random_kills_leave_no_process_descriptor_or_memory(start_zygote: Callable[..., Any]) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    zygote = start_zygote()
    before_fds, before_children = fds(), children()
    crowd = Crowd(rng)
    zygotes, kills = 1, 0
    grown: list[int] = []
    at_start, zygote_fds = anonymous_bytes(zygote.process.pid), fds(zygote.process.pid)
    began_s = time.monotonic()
    for number in range(1, FORKS + 1):
        crowd.alive.append(zygote.fork())
        while len(crowd.alive) > rng.randrange(ALIVE_MAX):
            crowd.end_one()
            kills += 1
        if number % ZYGOTE_KILLED_EVERY == 0:
            # It answers in order: what came with the last fork is closed by then.
            zygote.control.send({"t": "PING"})
            zygote.control.recv(60)
            grown.append(anonymous_bytes(zygote.process.pid) - at_start)
            assert fds(zygote.process.pid) == zygote_fds
            if rng.random() < 0.5:
                zygote.process.kill()
                # Its workers live on, without it.
                for pid, _channel in crowd.alive:
                    os.kill(pid, 0)
                before_children -= {zygote.process.pid}
                zygote.close()
                zygote = start_zygote()
                before_children |= {zygote.process.pid}
                zygotes += 1
                at_start, zygote_fds = anonymous_bytes(zygote.process.pid), fds(zygote.process.pid)
    while crowd.alive:
        crowd.end_one()
        kills += 1
    took_s = time.monotonic() - began_s
    print(f"{FORKS} forks of {zygotes} zygotes, {kills} ends in {took_s:.0f} s; most growth {max(grown) / MIB:.1f} MiB")
    assert kills == FORKS
    assert children() == before_children
    assert fds() == before_fds
    assert max(grown) < GROWTH_BYTES_MAX
