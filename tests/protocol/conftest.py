"""Socket pairs for the protocol tests, and a check that no test leaks an fd."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator

import pytest


def open_fds() -> set[str]:
    """`fd -> target` of this process, without the directory that is being listed."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return {entry for entry in found if "/proc/" not in entry}


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """The test must close what it opened."""
    gc.collect()
    before = open_fds()
    yield
    gc.collect()
    assert open_fds() - before == set()


@pytest.fixture
def pair(no_fd_leak: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield left, right
    left.close()
    right.close()
