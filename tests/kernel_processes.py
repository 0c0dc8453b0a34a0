"""The kernels that a test has started."""

from __future__ import annotations

import contextlib

import psutil


def kernels() -> set[psutil.Process]:
    """Our kernels below this process; those of tests before may still be ending."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "looseleaf.kernel" in process.cmdline():
                found.add(process)
    return found
