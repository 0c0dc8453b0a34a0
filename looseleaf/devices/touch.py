"""The first use of a GPU by a cell that runs in a kernel, which has none (design §4: a wrong label costs only time).

Each refusal of a device use tells here before it refuses. While a cell is watched, the use is noted, and in the cell's
own thread raised as a `GpuTouch` if the cell can be taken to a worker: then nothing of the cell needs to go on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Frames that are looked through for an import that is under way.
FRAMES_MAX = 200
_IMPORTING = "<frozen importlib._bootstrap>"


class GpuTouch(BaseException):
    """Leaves a cell that needs a GPU. No Exception, so that a person's `except Exception` does not swallow it; where a
    bare `except` does, the watch still knows of the use."""

    def __init__(self, used: str) -> None:
        super().__init__(f"this cell uses a GPU ({used})")
        self.used = used


class TouchWatch:
    """One cell. `used`: what it used first, empty until then. `raises`: see the module; else uses are only noted.

    `probed`: as `used`, by imports, which only probe: each process repeats them. It counts if it ended the cell.
    """

    def __init__(self, *, raises: bool) -> None:
        self.raises = raises
        self.used = ""
        self.probed = ""
        self._thread = threading.get_ident()
        self._pid = os.getpid()

    def is_own_thread(self) -> bool:
        """Whether this is the thread that runs the cell, in the process that does."""
        return threading.get_ident() == self._thread and os.getpid() == self._pid

    def tell(self, used: str) -> None:
        """Notes a use; raises GpuTouch if the cell is to be left."""
        if is_importing():
            self.probed = self.probed or used
            return
        self.used = self.used or used
        if self.raises and self.is_own_thread():
            raise GpuTouch(self.used)


_watch: TouchWatch | None = None


@contextmanager
def watched(watch: TouchWatch) -> Iterator[None]:
    """Inside, uses of a device in this process are those of the watched cell."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def tell(used: str) -> None:
    """A device was used and will be refused. Raises GpuTouch where the watched cell is to be left."""
    if (watch := _watch) is not None:
        watch.tell(used)


def is_importing() -> bool:
    """Whether a module's own code is on this thread's stack."""
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame.f_code.co_filename == _IMPORTING:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


# What torch without CUDA says, by kind; a kernel whose calls are guarded meets them only past the guard.
_SAID = {
    "AssertionError": ("Torch not compiled with CUDA enabled",),
    "TypeError": ("type torch.cuda.",),
    "RuntimeError": (
        "Cannot access accelerator device when none is available", "No CUDA GPUs are available",
        "Found no NVIDIA driver", "Cannot initialize CUDA without ATen_cuda library", "CUDA driver",
        "Attempting to deserialize object on a CUDA device",
    ),
    "NotImplementedError": ("from the 'CUDA' backend",),
    "AcceleratorError": ("CUDA error",),
}  # fmt: skip


def touch_in(ename: str, evalue: str) -> str:
    """What an error of that class and text used of a GPU that is not there; empty for any other error."""
    return evalue.splitlines()[0] if any(part in evalue for part in _SAID.get(ename, ())) else ""
