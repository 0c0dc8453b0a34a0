"""The most that a cell held on GPUs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from looseleaf import devices
from looseleaf.worker.peak import PeakBytes


def test_peak_is_of_the_cell_or_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    held, highest = {"cuda:0": 0}, [0, 0]
    cuda = SimpleNamespace(device_count=lambda: 2, max_memory_allocated=lambda index: highest[index])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(devices, "resident_bytes", lambda: held)
    peak = PeakBytes()
    assert peak.of_cell(touched=False) == 0
    held["cuda:0"], highest[:] = 5, [10, 2]
    assert peak.of_cell(touched=True) == 12
    # The next one held less than that; how much at most is not known.
    held["cuda:0"] = 7
    assert peak.of_cell(touched=True) == 7
    highest[:] = [20, 2]
    assert peak.of_cell(touched=True) == 22
