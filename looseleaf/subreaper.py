"""Orphans come to the process that watches over them: the worker daemon, and a probe of an import."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children. Raises OSError if the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")
