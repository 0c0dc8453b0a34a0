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


def test_cell_that_changes_nothing_leaves_a_worker_that_serves_the_next_daemon(
    make_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = make_worker()
    worker.run("import os\nkept = [1]\nother = [5]")
    path, go = str(tmp_path / "w.sock"), tmp_path / "go"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(LIMIT_S)
        worker.link.request_future("run", {
            "execution_id": "x-2", "execution_count": 2, "cell_id": "c", "allow_stdin": False, "context": {},
            "source": f"print('runs', flush=True)\nwhile not os.path.exists({str(go)!r}): pass", "reconnect": path,
        })  # fmt: skip
        worker.text_until("runs\n")
        worker.link.close()
        go.touch()
        next_daemon(worker, listener)
        saved, _fds = worker.link.request("resume", {"execution_id": "x-2"}, timeout_s=LIMIT_S)
    assert saved["version"] == 1
    while not worker.events.empty():
        worker.events.get()
    # Another holder has made a version since: this worker has to ask for it.
    other = make_worker(worker.store)
    other.prepare(["kept"])
    other.run("kept.append(3)", 3)
    worker.prepare(["kept", "other"])
    worker.run("print(kept, other)", 4)
    assert worker.text() == "[1, 3] [5]\n"


def test_version_that_is_followed_after_a_lost_answer_names_what_it_could_not_save(
    make_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = make_worker()
    worker.run("kept = [1]")
    goes_at_commit(worker, taken=True)
    path = str(tmp_path / "w.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(LIMIT_S)
        worker.link.request_future("run", {
            "execution_id": "x-2", "source": "kept.append(2)\nnumbers = (n for n in range(3))", "execution_count": 2,
            "cell_id": "c", "allow_stdin": False, "context": {}, "reconnect": path,
        })  # fmt: skip
        next_daemon(worker, listener)
        saved, _fds = worker.link.request("resume", {"execution_id": "x-2"}, timeout_s=LIMIT_S)
    assert saved["version"] == 2 and [row["name"] for row in saved["unsaved"]] == ["numbers"]


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
