"""What every test can rely on: tests of real GPUs are skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def _gpu_count() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and _gpu_count() == 0:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))
