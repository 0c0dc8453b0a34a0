"""The figures of one execution."""

from __future__ import annotations

import time

import pytest

from looseleaf.services.worker_daemon.execution_figures import CellTimes
from looseleaf.v1 import worker_daemon_pb2 as pb


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    return clock


def test_figures_of_a_cell_that_touches_the_gpu_late(clock: Clock) -> None:
    times, saved = CellTimes(elapsed_ms=500.0, granted_s=99.0), pb.CellSaved()
    clock.now_s = 101.0
    times.prepared(None)
    clock.now_s = 102.0
    times.started()
    clock.now_s = 110.0
    times.ended({"t": "ended", "run_s": 8.0, "first_touch_s": 3.0, "peak_bytes": 9})
    times.saved({"t": "ok", "dirty_regions": 1, "total_regions": 4, "bytes_moved": 7})
    clock.now_s = 112.0
    times.finish(saved)
    figures = saved.figures
    assert (figures.prepare_ms, figures.start_ms, figures.run_s, figures.save_ms) == (1000, 2500, 8, 2000)
    assert (figures.gpu_held_s, figures.gpu_pinned_s, figures.gpu_resident_s) == (13, 7, 0)
    assert saved.peak_device_bytes == 9
    assert (figures.dirty_regions, figures.total_regions, figures.bytes_moved) == (1, 4, 7)
    clock.now_s = 120.0
    times.released()
    assert times.figures.gpu_held_s == 21 and saved.figures.gpu_held_s == 13


def test_figures_of_a_cell_that_did_not_run_are_the_lease_only(clock: Clock) -> None:
    times, saved = CellTimes(elapsed_ms=0.0, granted_s=100.0), pb.CellSaved()
    times.prepared(42.0)
    clock.now_s = 101.0
    times.finish(saved)
    assert (saved.figures.prepare_ms, saved.figures.gpu_held_s) == (42, 1)
    assert (saved.figures.save_ms, saved.figures.gpu_pinned_s, times.started_s) == (0, 0, None)
