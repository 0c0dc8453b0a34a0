from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.worker import thread_counts
from looseleaf.worker.comms import CommInbox
from looseleaf.worker.thread_counts import (
    THREAD_VARIABLES,
    ComputeThreads,
    default_thread_count,
    missing_thread_variables,
    set_thread_count,
)

COUNT_AFTER_RAISE = """
import ctypes, numpy
from looseleaf.worker.thread_counts import loaded_thread_libraries, set_thread_count
libraries = loaded_thread_libraries()
set_thread_count(2, libraries)
for path in libraries:
    if 'openblas' in path:
        library = ctypes.CDLL(path)
        for name in ('scipy_openblas_get_num_threads64_', 'openblas_get_num_threads64_', 'openblas_get_num_threads'):
            if hasattr(library, name):
                print(getattr(library, name)())
                break
"""


def test_missing_thread_variables_names_those_that_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    assert missing_thread_variables() == []
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("MKL_NUM_THREADS")
    assert missing_thread_variables() == ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]


def test_default_thread_count_is_what_this_process_may_use() -> None:
    assert default_thread_count() == len(os.sched_getaffinity(0))


def test_set_thread_count_raises_blas_threads_above_the_variables() -> None:
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    command = [sys.executable, "-c", COUNT_AFTER_RAISE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    if not done.stdout.strip():
        pytest.skip("this numpy does not come with OpenBLAS")
    assert done.stdout.split() == ["2"], done.stderr


@pytest.mark.parametrize(("count", "most", "expected"), [(4, 64, 4), (100, 64, 64)])
def test_set_thread_count_reaches_numexpr_within_what_it_allows(
    monkeypatch: pytest.MonkeyPatch, count: int, most: int, expected: int
) -> None:
    asked: list[int] = []
    stand_in = types.SimpleNamespace(set_num_threads=asked.append, MAX_THREADS=most)
    monkeypatch.setitem(sys.modules, "numexpr", stand_in)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    set_thread_count(count, [])
    assert asked == [expected]


def test_compute_threads_tell_a_pool_that_would_be_busy_only_when_they_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(thread_counts, "set_library_counts", lambda count, paths: told.append((count, paths)))
    monkeypatch.delitem(sys.modules, "numexpr", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    threads = ComputeThreads(["/lib/libopenblas64_.so", "/lib/libgomp.so.1"])
    settled = [threads.settled]
    threads.begin(3)
    settled.append(threads.settled)
    assert told == [(3, ["/lib/libgomp.so.1"])]
    threads.settle()
    threads.settle()
    settled.append(threads.settled)
    assert told[1:] == [(3, ["/lib/libopenblas64_.so"])] and settled == [True, False, True]
    threads.begin(3)
    threads.set(2)
    threads.settle()
    assert told[3:] == [(2, ["/lib/libopenblas64_.so", "/lib/libgomp.so.1"])]


def test_callbacks_of_the_front_end_wait_for_a_cell_whose_setting_up_settles_the_threads() -> None:
    told: list[tuple[str, bool]] = []
    loop = asyncio.new_event_loop()
    comms = CommInbox(loop, lambda origin, late: told.append((origin, late)))
    comms.take({"t": "comm", "origin": "o-1", "message": {"type": "comm_msg", "comm_id": "c-1"}})
    comms.open()
    comms.serve()
    loop.close()
    assert told == [("o-1", True)]


THREADS_OF_TEST = 8


def tasks(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_worker_that_idles_has_all_its_compute_threads_before_a_cell(make_worker: Callable[..., Any]) -> None:
    worker = make_worker(LOOSELEAF_THREADS=str(THREADS_OF_TEST))
    if "openblas" not in Path(f"/proc/{worker.pid}/maps").read_text():
        pytest.skip("this numpy does not come with OpenBLAS")
    # torch's and OpenBLAS's, each besides the main thread; ours are fewer than those of either.
    wanted = 1 + 2 * (THREADS_OF_TEST - 1)
    deadline_s = time.monotonic() + 60
    while tasks(worker.pid) <= wanted:
        assert time.monotonic() < deadline_s, tasks(worker.pid)
        os.sched_yield()


COUNTS = """
import json, numpy, torch
counts = {"torch": [torch.get_num_threads(), torch.get_num_interop_threads()]}
try:
    import pyarrow
    counts["pyarrow"] = [pyarrow.cpu_count(), pyarrow.io_thread_count()]
except ImportError:
    pass
try:
    import joblib, scipy.linalg, sklearn, threadpoolctl
    counts["joblib"] = joblib.cpu_count()
    counts["pools"] = sorted([pool["filepath"], pool["num_threads"]] for pool in threadpoolctl.threadpool_info())
except ImportError:
    pass
print(json.dumps(counts))
"""


@pytest.mark.slow
def test_worker_computes_with_as_many_threads_as_a_fresh_process(
    start_zygote: Callable[..., Any], make_worker: Callable[..., Any]
) -> None:
    zygote = start_zygote("numpy,torch,pyarrow,scipy.linalg,sklearn")
    worker = make_worker(zygote=zygote, LOOSELEAF_THREADS=str(default_thread_count()))
    assert worker.run(COUNTS)["status"] == "ok"
    env = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, env=env, check=True)
    assert json.loads(worker.text()) == json.loads(done.stdout)
