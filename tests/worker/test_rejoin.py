"""A worker whose daemon goes in the middle of its cell's save, and the daemon that comes in its place."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.errors import Unavailable
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.threaded import ThreadedLink

Worker = Any
LIMIT_S = 60.0


def goes_at_commit(worker: Worker, taken: bool) -> None:
    """The daemon is lost at the first commit, which the store has `taken` or not."""
    commit = worker._on_commit

    def lost(message: dict[str, Any]) -> Any:
        del worker._on_commit
        if taken:
            commit(message)
        worker.link.close()
        raise Unavailable("PEER_CLOSED", "the daemon was killed")

    worker._on_commit = lost


def next_daemon(worker: Worker, listener: socket.socket) -> dict[str, Any]:
    """Lets the worker in; its hello."""
    hello: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def take_hello(message: dict[str, Any]) -> Any:
        hello.put(message)
        return {}, []

    worker._on_hello = take_hello
    connection, _address = listener.accept()
    worker.link = ThreadedLink(Channel(connection), lambda message, _fds: worker.events.put(message), worker._serve)
    worker.link.start()
    return hello.get(timeout=LIMIT_S)


@pytest.mark.parametrize("taken", [True, False])
def test_save_whose_commit_has_no_answer_becomes_one_version(
    make_worker: Callable[..., Worker], tmp_path: Path, taken: bool
) -> None:
    worker = make_worker()
    worker.run("kept = [1]")
    goes_at_commit(worker, taken)
    path = str(tmp_path / "w.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(LIMIT_S)
        lost = worker.link.request_future("run", {
            "execution_id": "x-2", "source": "import numpy\nkept.append(2)\nlarge = numpy.ones(1 << 20)",
            "execution_count": 2, "cell_id": "c", "allow_stdin": False, "context": {}, "reconnect": path,
        })  # fmt: skip
        with pytest.raises(Unavailable, match="PEER_CLOSED"):
            lost.result(LIMIT_S)
        hello = next_daemon(worker, listener)
        assert (hello["pid"], hello["execution_id"]) == (worker.pid, "x-2") and hello["started_s"] > 0
        saved, _fds = worker.link.request("resume", {"execution_id": "x-2"}, timeout_s=LIMIT_S)
    assert saved["version"] == 2 and saved["unsaved"] == []
    assert [decode_manifest(data).execution_id for data in worker.store.manifests] == ["x-1", "x-2"]
    # What both daemons were told of it.
    while not worker.events.empty():
        worker.events.get()
    # The cell is over: the worker takes the next one, from the same state.
    worker.prepare(["kept", "large"])
    worker.run("print(kept, large.sum())", 3)
    assert worker.text() == "[1, 2] 1048576.0\n"
