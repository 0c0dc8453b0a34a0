"""Where and with what a benchmark ran; pytest-benchmark puts it into its JSON."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "numpy", "cloudpickle", "grpcio", "protobuf", "ipykernel", "pytest-benchmark")


def facts() -> dict[str, Any]:
    """Plain values: date, CPU, memory, versions, build, commit."""
    from looseleaf.dirty_tracker import build_info

    return {
        "date_utc": f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M}",
        "cpu_model": _field("/proc/cpuinfo", "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").removesuffix(" kB")) / (1 << 20), 1),
        "virtual_machine": "hypervisor" in _field("/proc/cpuinfo", "flags").split(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "build": build_info(),
        "commit": _commit(),
        "command": " ".join(sys.argv[1:]),
    }


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _commit() -> str:
    """The checkout's commit, marked if it has changes; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip()
