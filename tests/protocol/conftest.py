"""Socket pairs for the protocol tests, and waits that a signal handler ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield left, right
    left.close()
    right.close()


class _BrokenOff(BaseException):
    pass


@pytest.fixture
def broken_off() -> Callable[[], AbstractContextManager[None]]:
    """What runs inside, and would wait for long, is broken off as a kernel's commit is."""

    def break_off(_number: int, _frame: Any) -> None:
        raise _BrokenOff

    @contextmanager
    def inside() -> Iterator[None]:
        previous = signal.signal(signal.SIGALRM, break_off)
        try:
            with pytest.raises(_BrokenOff):  # noqa: PT012 - the alarm must not ring before it
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    return inside
