"""Forks that the system refuses, and forks of a process whose libraries have computed."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from looseleaf.worker.zygote_forks import fork_grandchild

COMPUTES = """
import importlib.util, numpy, torch
def compute():
    a = torch.rand(300, 300, requires_grad=True)
    (a @ a).exp().sum().backward()
    numpy.ones((300, 300)) @ numpy.ones((300, 300))
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn.cluster import KMeans
        KMeans(3, n_init=1).fit(numpy.random.rand(2000, 8))
compute()
"""


def children() -> set[str]:
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
@pytest.mark.parametrize("which", [1, 2])
def test_fork_that_the_system_refuses_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int, which: int
) -> None:
    fork, count = os.fork, 0

    def refuse() -> int:
        nonlocal count
        count += 1
        if count == which:
            raise OSError(number, os.strerror(number))
        return fork()

    def never() -> NoReturn:
        os._exit(9)

    monkeypatch.setattr(os, "fork", refuse)
    before, fds = children(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        fork_grandchild(never)
    assert caught.value.errno == number
    assert (children(), len(os.listdir("/proc/self/fd"))) == (before, fds)


@pytest.mark.slow
def test_worker_computes_with_more_threads_after_its_zygote_has_computed(
    start_zygote: Callable[..., Any], make_worker: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "computes_at_import.py").write_text(COMPUTES)
    root = str(Path(__file__).resolve().parents[2])
    zygote = start_zygote("torch,computes_at_import", PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert zygote.first["failed"] == []
    if importlib.util.find_spec("sklearn") is None:
        assert zygote.first["threads"] == 1
    worker = make_worker(zygote=zygote, LOOSELEAF_THREADS="2")
    cell = "import torch, computes_at_import\ncomputes_at_import.compute()\nprint(torch.get_num_threads())"
    assert worker.run(cell)["status"] == "ok"
    assert worker.text() == "2\n"
