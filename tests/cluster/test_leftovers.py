"""What GPU cells leave running: it holds its GPU for a limited time, is told about, and keeps nobody else waiting."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

GPU = {"looseleaf": {"device": "gpu"}}
KEEP_S = 4.0
LIMIT_S = 30.0
# A thread that ends when the file `go` is made.
LEAVE = (
    "import pathlib, threading, time\nstate = {'n': 0}\n"
    "def work():\n    while not pathlib.Path(GO).exists(): time.sleep(0.01)\n    state['n'] = 7; print('worked')\n"
    "threading.Thread(target=work, name='worker-of-mine').start()"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One virtual GPU, held for what cells leave for `KEEP_S`."""
    cluster = LocalCluster.start(
        data=tmp_path_factory.mktemp("left") / "d", device="emulated", gpus=1, emulated_delays=False,
        keep_leftovers_s=KEEP_S,
    )  # fmt: skip
    yield cluster
    cluster.stop()


@pytest.fixture
def new(new_notebook: Callable[..., Any]) -> Callable[[], Any]:
    return new_notebook


def gpu(notebook: Any, code: str) -> tuple[str, Any]:
    message_id = notebook.start(code, GPU)
    return message_id, notebook.finish(message_id)


def late_text(notebook: Any, message_id: str, until: str) -> str:
    """What is shown under a cell that has ended, until `until` is in it."""
    text, limit_s = "", time.monotonic() + LIMIT_S
    while until not in text:
        assert time.monotonic() < limit_s, text
        try:
            message = notebook.client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            continue
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == message_id:
            text += message["content"]["text"]
    return text


@pytest.mark.slow
def test_thread_is_told_about_and_ended_when_its_time_is_over(new: Any, tmp_path: Any) -> None:
    notebook = new()
    message_id, outcome = gpu(notebook, LEAVE.replace("GO", repr(str(tmp_path / "never"))))
    assert outcome.status == "ok" and outcome.text == ""
    text = late_text(notebook, message_id, "was ended after")
    assert text.count("background thread 'worker-of-mine' of this cell still runs") == 1
    assert f"for up to {KEEP_S:g} s" in text and "what it changed since is not kept" in text
    assert notebook.ok("state['n']").value == "0"


@pytest.mark.slow
def test_other_notebook_waits_no_longer_than_the_limit(new: Any, tmp_path: Any) -> None:
    first, second = new(), new()
    gpu(first, LEAVE.replace("GO", repr(str(tmp_path / "never"))))
    _message_id, outcome = gpu(second, "print('ran')")
    assert outcome.text == "ran\n"


@pytest.mark.slow
def test_thread_that_ends_in_time_is_not_spoken_of(new: Any, tmp_path: Any) -> None:
    notebook, go = new(), tmp_path / "go"
    message_id, _outcome = gpu(notebook, LEAVE.replace("GO", repr(str(go))))
    go.touch()
    assert late_text(notebook, message_id, "worked\n") == "worked\n"


@pytest.mark.slow
def test_next_gpu_cell_of_the_notebook_runs_beside_the_thread_and_saves_its_changes(new: Any, tmp_path: Any) -> None:
    notebook, go = new(), tmp_path / "go"
    _message_id, first = gpu(notebook, LEAVE.replace("GO", repr(str(go))))
    _message_id, second = gpu(notebook, f"pathlib.Path({str(go)!r}).touch()\nwhile not state['n']: time.sleep(0.01)")
    assert second.report["worker"] == first.report["worker"]
    assert notebook.ok("state['n']").value == "7"


@pytest.mark.slow
def test_process_that_a_cell_left_is_named(new: Any) -> None:
    notebook = new()
    message_id, _outcome = gpu(notebook, "import subprocess\nchild = subprocess.Popen(['sleep', '100'])")
    assert "process 'sleep (" in late_text(notebook, message_id, "was ended after")
