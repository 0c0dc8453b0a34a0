"""Which request an output belongs to, decided as an ordinary kernel decides it.

A cell and the asyncio tasks that it starts carry their request in a context variable, also after the cell's end.
Threads start without one: what they show belongs to the newest request of the notebook (ipykernel 7.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

# The execution's id, or the id that the kernel gave a front end's message; empty for the newest request.
ORIGIN: Final[ContextVar[str]] = ContextVar("looseleaf_origin", default="")


@contextmanager
def under(origin: str) -> Iterator[None]:
    """Inside, outputs belong to the request `origin`."""
    token = ORIGIN.set(origin)
    try:
        yield
    finally:
        ORIGIN.reset(token)
