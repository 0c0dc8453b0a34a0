"""Children that `multiprocessing` starts afresh see what their parent sees.

Only virtual devices need help for it: a real GPU is there for every process.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from looseleaf import devices

# What the children run: a module of their own, so that they need not read this one, nor pytest.
CHILD = """
import torch

def look(_=None):
    x = torch.ones(2, device="cuda:1")
    return str((x + 1).device), torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory

def refused(_=None):
    try:
        torch.ones(1).cuda()
    except Exception as error:
        return str(error)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "spawned_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    import spawned_child

    yield spawned_child
    sys.modules.pop("spawned_child", None)


def _in_child(function: object) -> object:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(function, [0])[0]
        pool.close()
        pool.join()
    return found


@pytest.mark.usefixtures("virtual")
@pytest.mark.leaks_ok("multiprocessing's resource tracker")
def test_spawned_child_has_the_same_virtual_devices(child) -> None:
    assert _in_child(child.look) == ("cuda:1", 2, 1 << 30)


@pytest.mark.slow
@pytest.mark.usefixtures("kernel")
@pytest.mark.leaks_ok("multiprocessing's resource tracker")
def test_spawned_child_of_a_kernel_is_refused_as_the_kernel_is(child) -> None:
    assert "CUDA_IN_CPU_CELL" in str(_in_child(child.refused))


def test_nothing_is_told_to_children_after_uninstall() -> None:
    import multiprocessing.spawn

    devices.install("worker", "emulated", 1)
    assert "looseleaf_devices" in multiprocessing.spawn.get_preparation_data("child")
    devices.uninstall()
    assert "looseleaf_devices" not in multiprocessing.spawn.get_preparation_data("child")


@pytest.mark.slow
@pytest.mark.usefixtures("virtual")
def test_interpreter_started_by_hand_has_no_virtual_devices() -> None:
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert torch.cuda.is_available()
    assert done.stdout.strip() == "False" or os.path.exists("/dev/nvidia0")
