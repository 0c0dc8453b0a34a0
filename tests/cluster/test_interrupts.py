"""Interrupts of moved cells: every kind of waiting, by signal and by message, and what follows a first one in vain."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GPU = {"looseleaf": {"device": "gpu"}}
# Each says so and waits for ever. Commands say it themselves: Python swallows an interrupt that comes inside a fork.
WAITS = {
    "sleep": "import time\nready()\ntime.sleep(1000)",
    "busy loop": "ready()\nwhile True: pass",
    "input": "ready()\ninput('never? ')",
    "await": "import asyncio\nready()\nawait asyncio.sleep(1000)",
    "native sleep": "import ctypes\nlibc = ctypes.CDLL(None)\nready()\nwhile True: libc.usleep(100000)",
    "lock": "import threading\nlock = threading.Lock(); lock.acquire()\nready()\nlock.acquire()",
    "thread's end": "import threading, time\nt = threading.Thread(target=time.sleep, args=[1000], daemon=True)\n"
                    "t.start()\nready()\nt.join()",
    "subprocess": "import subprocess\nsubprocess.run(['sh', '-c', 'echo waits; sleep 1000'])",
    "shell command": "!echo waits; sleep 1000",
}  # fmt: skip


# A cell that awaits is cancelled, as by ipykernel's `_cancel_on_sigint`; IPython hands an interrupt on to its command.
ENDS = {"await": "CancelledError", "shell command": ""}


def begin(notebook: Any, code: str) -> str:
    """Starts a cell on a worker; returns once it waits."""
    message_id: str = notebook.start("def ready(): print('waits', flush=True)\n" + code, GPU)
    while True:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream" and "waits" in message["content"]["text"]:
            return message_id


def interrupt(notebook: Any, way: str) -> None:
    if way == "signal":
        os.kill(notebook.pid, signal.SIGINT)
    else:
        notebook.client.control_channel.send(notebook.client.session.msg("interrupt_request", {}))
        notebook.client.get_control_msg(timeout=30)


@pytest.mark.parametrize("way", [pytest.param("signal", marks=pytest.mark.slow), "message"])
@pytest.mark.parametrize("wait", WAITS)
def test_interrupt_ends_the_wait_and_the_next_cell_runs(shared: Any, wait: str, way: str) -> None:
    message_id = begin(shared, "kept = 41\n" + WAITS[wait])
    interrupt(shared, way)
    assert shared.finish(message_id).ename == ENDS.get(wait, "KeyboardInterrupt")
    # What the cell did before is there, in the same worker.
    assert shared.finish(shared.start("print(kept + 1)", GPU)).text == "42\n"


def test_second_interrupt_reaches_a_cell_that_catches_the_first(shared: Any) -> None:
    code = (
        "import time\nready()\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: print('again', flush=True)\n"
        "time.sleep(1000)"
    )
    message_id = begin(shared, code)
    interrupt(shared, "message")
    while "again" not in str(shared.client.get_iopub_msg(timeout=60)["content"]):
        continue
    interrupt(shared, "message")
    assert shared.finish(message_id).ename == "KeyboardInterrupt"


def test_third_interrupt_ends_a_worker_that_does_not_listen(shared: Any) -> None:
    shared.ok("kept = 1")
    code = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nkept = 2\nready()\n"
        "while True: time.sleep(1)"
    )
    message_id = begin(shared, code)
    for _ in range(3):
        interrupt(shared, "message")
    outcome = shared.finish(message_id)
    assert outcome.ename == "WORKER_LOST" and "this cell's changes are lost" in outcome.error
    assert shared.ok("kept").value == "1"
