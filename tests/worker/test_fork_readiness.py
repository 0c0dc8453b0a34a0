"""What a zygote has done before it forks, and that its imports see nothing of it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from looseleaf.worker.fork_readiness import forget_found_files

EMULATED = {"LOOSELEAF_DEVICE": "emulated", "LOOSELEAF_GPUS": "1"}
# A worker's devices were there at the fork if the collector, which was told to leave such objects, does not list them.
LOOK = """
import gc, torch
from looseleaf import devices
made_here = any(one is devices._installed for one in gc.get_objects())
print(made_here, torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(1, device='cuda').device)
"""


@pytest.fixture(scope="module")
def with_gpu(zygote: Any) -> Iterator[Any]:
    """A zygote with torch whose workers have a virtual GPU."""
    node = zygote.fork_node("shows_a_gpu", "records_lookups")
    assert node.first["t"] == "READY", node.first
    yield node
    assert node.close() == 0


def test_devices_of_workers_are_there_before_the_fork(with_gpu: Any, make_worker: Any) -> None:
    worker = make_worker(zygote=with_gpu, **EMULATED)
    worker.run(LOOK)
    assert worker.text() == "False True 1 cuda:0\n"


def test_worker_looks_for_no_module_before_its_first_cell(with_gpu: Any, make_worker: Any) -> None:
    worker = make_worker(zygote=with_gpu, **EMULATED)
    worker.run("import os, records_lookups as r; print([name for pid, name in r.looked_for if pid == os.getpid()])")
    assert worker.text() == "[]\n"


def test_found_files_are_forgotten_after_each_import_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(importlib, "invalidate_caches", lambda: forgotten.append(True))

    def forgets() -> bool:
        forgotten.clear()
        forget_found_files()
        return bool(forgotten)

    forgets()
    assert not forgets()
    monkeypatch.setitem(sys.modules, "ll_new", sys)
    assert forgets() and not forgets()
    # As many as before.
    monkeypatch.delitem(sys.modules, "ll_new")
    monkeypatch.setitem(sys.modules, "ll_newer", sys)
    assert forgets() and not forgets()


def test_worker_with_other_devices_than_its_zygote_installs_its_own(with_gpu: Any, make_worker: Any) -> None:
    worker = make_worker(zygote=with_gpu, **{**EMULATED, "LOOSELEAF_GPUS": "2"})
    worker.run(LOOK)
    assert worker.text() == "True True 2 cuda:0\n"
    without = make_worker(zygote=with_gpu, LOOSELEAF_DEVICE="none")
    without.run("import torch; print(torch.cuda.is_available(), torch.Generator is torch._C.Generator)")
    assert without.text() == "False True\n"


def test_what_a_node_imports_sees_no_device_and_its_workers_do(with_gpu: Any, make_worker: Any) -> None:
    node = with_gpu.fork_node("bears_no_gpu")
    assert node.first["t"] == "READY", node.first
    worker = make_worker(zygote=node, **EMULATED)
    worker.run(LOOK)
    assert worker.text() == "False True 1 cuda:0\n"
    worker.end()
    assert node.close() == 0


def test_what_a_probe_imports_sees_no_device(with_gpu: Any) -> None:
    read_fd, write_fd = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    body = {"t": "FORK", "v": 1, "id": 1, "title": "ll-probe", "env": {}, "kind": "probe", "imports": ["bears_no_gpu"]}
    with_gpu.control.send(body, [write_fd, null, null, 2])
    os.close(write_fd)
    os.close(null)
    reply, _ = with_gpu.control.recv(60)
    with open(read_fd) as pipe:
        *_, last = [json.loads(line) for line in pipe]
    os.waitpid(reply["pid"], 0)
    # The folder that it comes from is no installed one; an import that raised would be told first.
    assert last["result"]["verdict"] == "foreign", last
    assert "bears_no_gpu" in last["result"]["modules"]
