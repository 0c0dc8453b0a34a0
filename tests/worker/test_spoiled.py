"""Whether a worker can tell that its zygote spoiled CUDA for it; the driver itself is a stand-in."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.worker import probe_checks

FORKED = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use 'spawn'"
CUPY = "cudaErrorInitializationError: initialization error"


class Driver:
    """What `cuDeviceGetCount` answers: 3 in a process that cannot use it."""

    def __init__(self, code: int) -> None:
        self.code = code

    def cuDeviceGetCount(self, _count: Any) -> int:
        return self.code


@pytest.mark.parametrize(
    ("bad_fork", "driver", "error", "spoiled"),
    [
        (True, None, "", True),
        (True, None, "something else", True),
        # torch can: it was a process that the cell forked itself.
        (False, None, FORKED, False),
        (False, Driver(0), FORKED, False),
        (None, Driver(0), CUPY, False),
        (None, Driver(3), CUPY, True),
        (None, Driver(3), "CUDA_ERROR_NOT_INITIALIZED (3)", True),
        # Nobody has asked it for anything yet.
        (None, Driver(3), "ValueError: x", False),
    ],
)
def test_spoiled_cuda_is_told_from_errors_of_processes_that_a_cell_forked(
    monkeypatch: pytest.MonkeyPatch, bad_fork: bool | None, driver: Driver | None, error: str, spoiled: bool
) -> None:
    monkeypatch.setattr(probe_checks, "_loaded_driver", lambda: driver)
    if bad_fork is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        torch = SimpleNamespace(_C=SimpleNamespace(_cuda_isInBadFork=lambda: bad_fork))
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert probe_checks.cuda_is_spoiled(error) is spoiled


def test_a_persons_own_torch_costs_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise RuntimeError("mine")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_cuda_isInBadFork=refuse)))
    assert not probe_checks.cuda_is_spoiled("")


def test_virtual_gpus_are_not_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Core:
        """As torch._C with a virtual GPU: any function of a CUDA build is there, and refuses."""

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=Core()))
    assert not probe_checks.cuda_is_spoiled("") and not caplog.records


def test_worker_tells_with_a_cells_end_whether_it_can_use_cuda(worker: Any) -> None:
    ends = [
        worker.finish(worker.begin(source, count))
        for count, source in enumerate(("1", "import torch\ntorch._C._cuda_isInBadFork = lambda: True"), 1)
    ]
    assert [end["cuda_spoiled"] for end in ends] == [False, True]
