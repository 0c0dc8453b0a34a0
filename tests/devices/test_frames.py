"""Tracebacks show a person's cell and torch, not us."""

from __future__ import annotations

import traceback

import pytest
import torch

from looseleaf import devices


@pytest.mark.usefixtures("virtual")
def test_frames_of_the_package_leave_the_traceback_and_others_stay() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(2, 2).cuda()(torch.ones(3, device="cuda"))
    before = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    devices.hide_device_frames(caught.value)
    after = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any("looseleaf/devices" in name for name in before)
    assert after == [name for name in before if "looseleaf/devices" not in name]
    assert after[0] == __file__


@pytest.mark.usefixtures("virtual")
def test_frames_leave_causes_too_and_cycles_end() -> None:
    try:
        try:
            torch.ones(1, device="cuda") + torch.ones(2)
        except RuntimeError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        outer.__cause__.__context__ = outer
        devices.hide_device_frames(outer)
        names = [frame.filename for frame in traceback.extract_tb(outer.__cause__.__traceback__)]
    assert names == [__file__]
