"""Every new thread gets the mode that the process has (design §8); torch keeps modes per thread."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from looseleaf.devices.patches import PatchSet


def patch_threads(enter: Callable[[], None], leave: Callable[[], None], patches: PatchSet) -> None:
    """Call `enter` first and `leave` last in each thread started from now on; `leave` may follow an error.

    Threads that run already are not reached; forked children keep what the forking thread has.
    """
    original: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap_inner(self: threading.Thread) -> None:
        enter()
        try:
            original(self)
        finally:
            leave()

    patches.set(threading.Thread, "_bootstrap_inner", bootstrap_inner)

    start: Any = _thread.start_new_thread

    def start_new_thread(function: Callable[..., object], args: Any = (), kwargs: Any = None) -> int:
        def run(*given: Any, **named: Any) -> None:
            enter()
            try:
                function(*given, **named)
            finally:
                leave()

        return int(start(run, args, kwargs or {}))

    for name in ("start_new_thread", "start_new"):
        if hasattr(_thread, name):
            patches.set(_thread, name, start_new_thread)
