"""Tracebacks show a person's cell and torch, not us."""

from __future__ import annotations

import subprocess
import sys
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


def _ours(error: BaseException) -> BaseException:
    """An error that went through nothing but the package's own frames."""
    scope: dict[str, object] = {}
    exec(compile("def fail(e): raise e", devices.__file__, "exec"), scope)
    try:
        scope["fail"](error)  # type: ignore[operator]
    except BaseException as caught:
        caught.__traceback__ = caught.__traceback__.tb_next  # type: ignore[union-attr]
    return error


@pytest.mark.parametrize("made", [ValueError("never raised"), _ours(ValueError("all ours"))])
@pytest.mark.parametrize("place", ["__cause__", "__context__", "itself"])
def test_error_without_a_frame_of_others_stays_as_it_is(made: BaseException, place: str) -> None:
    shown = RuntimeError("outer") if place != "itself" else made
    if shown is not made:
        setattr(shown, place, made)
    before = made.__traceback__
    devices.hide_device_frames(shown)
    assert made.__traceback__ is before


# A stock shell whose torch has virtual devices, as the golden comparison's reference kernel.
SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from looseleaf import devices
devices.install("reference", "emulated", 1)
shell = InteractiveShell.instance(colors="nocolor")
devices.hide_in_shell(shell)
for cell in (
    "import torch; x = torch.ones(2, device='cuda'); m = torch.nn.Linear(3, 1).cuda()",
    "x[5]", "m(x)", "x + torch.ones(3, device='cuda')", "x.to('nowhere')",
    "torch.empty(2, 3, device='cuda') @ x.int()",
    "class Own(torch.nn.Module):\\n    def forward(self, x):\\n        return x[9]",
    "try:\\n    Own()(x)\\nexcept IndexError as e:\\n    raise ValueError('outer') from e",
    "raise RuntimeError('at last') from KeyError('never raised')",
    "with torch.no_grad():\\n    list(map(lambda t: t.view(7), [x]))", "1 / 0",
    "torch.nn.functional.cross_entropy(x[None], torch.ones(3, 4, device='cuda'))",
):
    shell.run_cell(cell, store_history=True)
"""


@pytest.mark.slow
def test_frames_of_the_package_are_in_no_traceback_that_a_shell_shows() -> None:
    done = subprocess.run([sys.executable, "-c", SHELL], capture_output=True, text=True, timeout=100, check=True)
    shown = done.stdout + done.stderr
    assert "looseleaf" not in shown, shown
    wanted = ("IndexError", "RuntimeError", "ValueError: outer", "ZeroDivisionError", "direct cause", "Error: at last")
    assert all(text in shown for text in wanted), shown
    assert shown.count("Traceback (most recent call last)") == 12, shown
    assert "overrides.py" not in shown and shown.count("in cross_entropy") == 1
    assert "-> 1 x[5]" in shown and "torch/nn/modules/linear.py" in shown
