from __future__ import annotations

import json
from pathlib import Path

from looseleaf.kernel.install import KERNEL_NAME, kernel_spec


def test_kernelspec_of_the_wheel_is_the_one_that_install_writes_for_jupyters_own_python() -> None:
    root = Path(__file__).resolve().parents[2]
    shipped = json.loads((root / "share/jupyter/kernels" / KERNEL_NAME / "kernel.json").read_text())
    assert shipped == kernel_spec(python="python")
