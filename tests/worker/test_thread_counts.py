from __future__ import annotations

import os
import subprocess
import sys

import pytest

from looseleaf.worker.thread_counts import THREAD_VARIABLES, default_thread_count, missing_thread_variables

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
