"""What the system tells of one process in /proc/PID/stat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# Places behind the command's name, counted from the state (proc(5) counts from 1 and has the name at 2).
_STATE: Final = 0
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_START_TICKS: Final = 19
# Ended, but not yet waited for by its parent.
_REMAINS: Final = frozenset({"Z", "X"})


def stat_fields(pid: int) -> list[str]:
    """From the state on; the name before it may hold anything. Raises OSError if there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()


def process_ticks(pid: int) -> int | None:
    """When the process began, in the kernel's ticks since the boot; None if there is none, or only its remains."""
    try:
        found = stat_fields(pid)
    except OSError:
        return None
    return None if found[_STATE] in _REMAINS else int(found[_START_TICKS])


def process_busy_s(pid: int) -> float:
    """Seconds of CPU that the process has used; 0 if there is none."""
    try:
        found = stat_fields(pid)
    except OSError:
        return 0.0
    return (int(found[_USER_TICKS]) + int(found[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")
