"""Python's search for garbage in cycles, out of the way of what a person waits for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_held() -> Iterator[None]:
    """Inside, no thread of this process searches; what is due is done right behind. For milliseconds.

    The analysis of a cell makes thousands of objects, of which hardly any is garbage, and each search among them may
    become one of all that the notebook has. A person who has switched the search off finds it off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
