"""A worker's connection over its daemon's lives; the daemons are channels of this process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from looseleaf.errors import LooseLeafError
from looseleaf.protocol.channel import Channel
from looseleaf.worker import lasting_link
from looseleaf.worker.lasting_link import LastingLink

LIMIT_S = 20.0


class Rig:
    """A worker with its first daemon; `next_daemon` is the one that comes in its place."""

    def __init__(self, path: Path) -> None:
        ours, theirs = socket.socketpair()
        self.daemon = Channel(ours)
        self.path = str(path)
        self.left: SimpleQueue[LooseLeafError] = SimpleQueue()
        self.requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.link = LastingLink(Channel(theirs), self._drop, self._take, self.left.put, lambda fds: None)
        self.link.start()
        self._listener: socket.socket | None = None

    def _drop(self, _message: Any, _fds: list[int]) -> None:
        return

    def _take(self, message: dict[str, Any], _fds: list[int]) -> None:
        if message["t"] != "resume" or not self.link.resume(message):
            self.requests.put(message)

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(LIMIT_S)

    def next_daemon(self) -> Channel:
        """Has heard the worker's hello and let it in."""
        assert self._listener is not None
        channel = Channel(self._listener.accept()[0])
        hello, _ = channel.recv(LIMIT_S)
        assert (hello["t"], hello["pid"], hello["execution_id"]) == ("hello", os.getpid(), "x-1")
        channel.send({"t": "ok", "id": hello["id"]})
        return channel

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self.link.current.close()
        self.daemon.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(lasting_link, "RETRY_S", 0.001)
    made = Rig(tmp_path / "w.sock")
    yield made
    made.close()


def numbers(channel: Channel, count: int) -> list[int]:
    return [channel.recv(LIMIT_S)[0]["n"] for _ in range(count)]


def test_between_cells_the_daemons_end_is_the_workers(rig: Rig) -> None:
    rig.link.begin_run(7, "x-1", rig.path)
    rig.link.answer(7, {"version": 2})
    assert rig.daemon.recv(LIMIT_S)[0] == {"t": "ok", "id": 7, "version": 2}
    rig.daemon.close()
    assert rig.left.get(timeout=LIMIT_S).reason == "PEER_CLOSED"


def test_cell_without_a_place_to_come_back_to_ends_with_its_daemon(rig: Rig) -> None:
    rig.link.begin_run(7, "x-1", "")
    rig.daemon.close()
    assert rig.left.get(timeout=LIMIT_S).reason == "PEER_CLOSED"


def test_worker_that_no_daemon_takes_in_time_ends_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_link, "REJOIN_S", 0.05)
    rig.link.begin_run(7, "x-1", rig.path)
    rig.daemon.close()
    assert rig.left.get(timeout=LIMIT_S).reason == "PEER_CLOSED"


def test_next_daemon_hears_all_that_was_told_and_gets_the_outcome(rig: Rig) -> None:
    rig.link.begin_run(7, "x-1", rig.path)
    rig.link.run_started()
    rig.link.tell("output", {"text": "a"})
    assert numbers(rig.daemon, 1) == [1]
    rig.daemon.close()
    rig.link.tell("output", {"text": "b"})
    answering = threading.Thread(target=rig.link.answer, args=(7, {"version": 2}))
    answering.start()
    rig.listen()
    # One that goes before it has asked for the outcome is none.
    rig.next_daemon().close()
    channel = rig.next_daemon()
    assert [channel.recv(LIMIT_S)[0] for _ in range(2)] == [
        {"t": "output", "text": "a", "n": 1}, {"t": "output", "text": "b", "n": 2},
    ]  # fmt: skip
    channel.send({"t": "resume", "id": 31, "execution_id": "x-1"})
    assert channel.recv(LIMIT_S)[0] == {"t": "ok", "id": 31, "version": 2}
    answering.join(LIMIT_S)
    assert not answering.is_alive() and rig.left.empty()
    channel.close()
    # The cell is over: this daemon's end is the worker's.
    assert rig.left.get(timeout=LIMIT_S).reason == "PEER_CLOSED"


def test_what_is_kept_is_bounded_and_who_tells_more_waits_for_a_daemon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of frames so large only one waits for the sender.
    monkeypatch.setattr(lasting_link, "KEPT_BYTES_MAX", 1 << 20)
    rig.link.begin_run(7, "x-1", rig.path)
    text = "x" * (300 << 10)

    def tell(count: int) -> None:
        for _ in range(count):
            rig.link.tell("output", {"text": text})

    first = threading.Thread(target=tell, args=[10])
    first.start()
    assert numbers(rig.daemon, 10) == list(range(1, 11))
    first.join(LIMIT_S)
    rig.daemon.close()
    telling = threading.Thread(target=tell, args=[20])
    telling.start()
    rig.listen()
    channel = rig.next_daemon()
    heard = numbers(channel, 1)
    assert 8 <= heard[0] <= 11, "of what the last daemon was told only the newest is kept"
    heard += numbers(channel, 30 - heard[0])
    telling.join(LIMIT_S)
    # Not one of those that were told while nobody was there.
    assert heard == list(range(heard[0], 31)) and not telling.is_alive()
    rig.link.begin_run(8, "x-2", "")
    channel.close()
    assert rig.left.get(timeout=LIMIT_S).reason == "PEER_CLOSED"


def test_daemon_that_asks_for_another_cell_is_told_so(rig: Rig) -> None:
    rig.link.begin_run(7, "x-1", rig.path)
    rig.daemon.send({"t": "resume", "id": 1, "execution_id": "x-2"})
    assert rig.requests.get(timeout=LIMIT_S)["execution_id"] == "x-2"
    rig.link.answer(7, LooseLeafErrorForTest())
    assert rig.daemon.recv(LIMIT_S)[0]["error"]["reason"] == "BUG"
    rig.daemon.close()
    assert rig.left.get(timeout=LIMIT_S)


class LooseLeafErrorForTest(Exception):
    """A fault."""
