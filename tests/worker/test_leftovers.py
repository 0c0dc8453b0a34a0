"""Which threads, processes and tasks of a cell are the person's, and which only serve a library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 20.0

QUIET = {
    "an idle thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
        "list(pool.map(abs, range(4)));"
    ),
    "an idle pool of processes": (
        "import multiprocessing as mp\npool = mp.get_context('fork').Pool(2)\npool.map(abs, range(4));"
    ),
    "an idle executor of processes": (
        "import multiprocessing as mp\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "pool = ProcessPoolExecutor(2, mp.get_context('fork'))\nlist(pool.map(abs, range(4)));"
    ),
    "a loader's workers": (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader(range(8), num_workers=2, "
        "persistent_workers=True, multiprocessing_context='fork')\nfor batch in loader: pass"
    ),
    "a loop over a loader": (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "for batch in DataLoader(range(8), num_workers=2, multiprocessing_context='fork'): pass"
    ),
    "a progress bar's monitor": "from tqdm import tqdm\nfor i in tqdm(range(3)): pass",
    "a finished task": "import asyncio\nawait asyncio.create_task(asyncio.sleep(0))",
    "work on asyncio's threads": "import asyncio\nawait asyncio.to_thread(abs, 1);",
    "a finished child": "import subprocess\nchild = subprocess.Popen(['true'])\nchild.wait();",
}  # fmt: skip

GATE = "import threading\ngate = threading.Event()\n"
OURS = {
    "a thread": (GATE + "threading.Thread(target=gate.wait, name='mine').start()", ("thread", "mine")),
    "a daemon thread of the session": (
        GATE + "threading.Thread(target=lambda: gate.wait(), name='mine', daemon=True).start()", ("thread", "mine")
    ),
    "a daemon thread of a class of the session": (
        GATE + "class Mine(threading.Thread):\n    def run(self): gate.wait()\nMine(name='mine', daemon=True).start()",
        ("thread", "mine"),
    ),
    "a timer": (GATE + "timer = threading.Timer(1000, print)\ntimer.name = 'mine'\ntimer.start()", ("thread", "mine")),
    "a busy thread pool": (
        GATE + "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1, 'mine')\n"
        "pool.submit(gate.wait);", ("thread", "mine_0"),
    ),
    "a busy pool of processes": (
        "import multiprocessing as mp, time\n"  # noqa: ISC004
        "pool = mp.get_context('fork').Pool(1)\npool.apply_async(time.sleep, [1000]);",
        ("process", ""),
    ),
    "a child process": ("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])", ("process", "sleep")),
    "a process of multiprocessing": (
        "import multiprocessing as mp, time\n"  # noqa: ISC004
        "child = mp.get_context('fork').Process(target=time.sleep, args=[1000])\n"
        "child.start()", ("process", ""),
    ),
    "a task": (
        "import asyncio\nasync def mine(): await asyncio.sleep(1000)\ntask = asyncio.create_task(mine())",
        ("task", "mine"),
    ),
}  # fmt: skip


def children() -> set[int]:
    """Processes whose parent is this one."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(autouse=True)
def adopted(zygote: Any) -> Iterator[None]:
    """What workers left is ended with them and comes to this process, which is their reaper."""
    before = children()
    yield
    limit_s = time.monotonic() + LIMIT_S
    for pid in children() - before:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < limit_s, f"process {pid} outlived its worker"
            time.sleep(0.01)


@pytest.mark.parametrize("kind", QUIET)
def test_what_serves_a_library_is_not_left_running(worker: Any, kind: str) -> None:
    ended = worker.finish(worker.begin(QUIET[kind]))
    assert (ended["reply"]["status"], ended["left"]) == ("ok", [])


@pytest.mark.parametrize("kind", OURS)
def test_what_a_person_left_running_is_named(worker: Any, kind: str) -> None:
    source, (item_kind, name) = OURS[kind]
    ended = worker.finish(worker.begin(source))
    assert ended["reply"]["status"] == "ok" and ended["left"]
    assert all(item["kind"] == item_kind and item["name"].startswith(name) for item in ended["left"])


def test_end_of_what_was_left_is_told(worker: Any) -> None:
    worker.finish(worker.begin(
        "import threading\ngate = threading.Event()\nthreading.Thread(target=gate.wait, name='mine').start()\n"
        "threading.Timer(0.3, gate.set).start()"
    ))  # fmt: skip
    while worker.event("left")["items"]:
        continue


def test_tasks_go_on_between_cells(worker: Any) -> None:
    worker.run("import asyncio\nasync def later():\n    await asyncio.sleep(0.05)\n    print('later')\n"
               "task = asyncio.create_task(later())", 1)  # fmt: skip
    message = worker.output_until(lambda m: m["type"] == "stream")
    assert (message["text"], message["origin"]) == ("later\n", "x-1")


@pytest.mark.parametrize("end", ["import sys; sys.exit()", "raise KeyboardInterrupt", "loop.stop()"])
def test_task_that_ends_the_loop_does_not_end_the_worker(worker: Any, end: str) -> None:
    worker.run("import asyncio\nloop = asyncio.get_running_loop()\nasync def ends():\n    await asyncio.sleep(0)\n"
               f"    {end}\ntask = loop.create_task(ends())", 1)  # fmt: skip
    assert worker.run("print('alive')", 2)["status"] == "ok" and worker.text() == "alive\n"


SLEEPS = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n"
AWKWARD = {
    "a name that the kernel cut within a character": (
        "import os, shutil, subprocess, tempfile\npath = os.path.join(tempfile.mkdtemp(), 'x' * 14 + 'ü')\n"
        "shutil.copy(shutil.which('sleep'), path)\nchild = subprocess.Popen([path, '1000'])"
    ),
    "a thread's name that is no text for a message": (
        GATE + "threading.Thread(target=gate.wait, name='\\udcff').start()"
    ),
    "a thread whose class's attributes raise": (
        GATE + "class Mine(threading.Thread):\n    @property\n    def function(self): raise ValueError\n"
        "    @property\n    def name(self): raise ValueError\n    def run(self): gate.wait()\nMine(daemon=True).start()"
    ),
    "a loader that failed while it was made": (
        SLEEPS + "from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Loader\n"
        "failed = Loader.__new__(Loader)"
    ),
    "a pool with a closed process": (
        SLEEPS + "import multiprocessing as mp\npool = mp.get_context('fork').Pool(1)\npool.terminate()\npool.join()\n"
        "closed = mp.get_context('fork').Process(target=abs, args=[1])\nclosed.start()\nclosed.join()\n"
        "closed.close()\npool._pool = [closed]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", AWKWARD)
def test_nothing_that_was_left_costs_the_save(worker: Any, kind: str) -> None:
    ended = worker.finish(worker.begin(AWKWARD[kind]))
    assert ended["reply"]["status"] == "ok" and len(ended["left"]) == 1
