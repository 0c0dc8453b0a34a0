"""What keeps the processes of the import cache apart from each other and from the host (design §10; study §4.4)."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_CLONE_NEWNET: Final = 0x40000000


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children. Raises OSError if the kernel refuses."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def leave_the_network() -> None:
    """No other host can be reached from here on, where this process may decide that; else nothing changes."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).unshare(_CLONE_NEWNET)


def _prctl(option: int, value: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
