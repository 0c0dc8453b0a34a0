"""How long a worker waits for its daemon while it saves; saves themselves are tested with workers."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.protocol.state_io import STATE_TIMEOUT_S, LinkStateIO
from looseleaf.worker.cell_save import CellSaver


class Link:
    """A LastingLink whose daemon may be replaced."""

    def __init__(self) -> None:
        self.current: Any = object()


class State:
    """A WorkerState that is told of new connections."""

    def __init__(self) -> None:
        self.used: list[LinkStateIO] = []

    def use(self, io: LinkStateIO) -> None:
        self.used.append(io)


@pytest.mark.parametrize("save_limit_s", [1.0, STATE_TIMEOUT_S, 86_400.0])
def test_no_request_of_a_save_is_given_up_before_the_daemon_ends_the_save(save_limit_s: float) -> None:
    link: Any = Link()
    io, state = LinkStateIO(link.current), State()
    nobody: Any = None
    saver = CellSaver(nobody, link, io, state)  # type: ignore[arg-type]
    saver.limit(save_limit_s)
    assert io.timeout_s > save_limit_s and io.timeout_s >= STATE_TIMEOUT_S
    # Also by the connection to the next daemon.
    link.current = object()
    saver.follow_link()
    assert [used.timeout_s for used in state.used] == [io.timeout_s]
