"""A control group with little memory, for processes that are to run out of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from looseleaf.local.cluster import wait_for

_MOUNT = Path("/sys/fs/cgroup")
_EMPTY_LIMIT_S = 20.0


@contextlib.contextmanager
def memory_group(limit_bytes: int, pids: Iterable[int]) -> Iterator[None]:
    """Inside, these processes and those that they start may together take so much more memory than they have.

    Afterwards they are where they were. Skips the test where no such group can be made.
    """
    home, limit_file = _own_group()
    group = home / f"looseleaf-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit_file).write_text(str(limit_bytes))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        _leave(group, home)
        pytest.skip(f"no control group for memory can be made here: {error}")
    try:
        yield
    finally:
        _leave(group, home)


def _own_group() -> tuple[Path, str]:
    """This process's group of version 1 or 2 as it is mounted here, and the name of the file with a group's limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount = _MOUNT / "memory"
            own = mount / path.lstrip("/")
            return (own if own.is_dir() else mount), "memory.limit_in_bytes"
    return _MOUNT, "memory.max"


def _leave(group: Path, home: Path) -> None:
    if not group.is_dir():
        return

    def gone() -> bool:
        for pid in (group / "cgroup.procs").read_text().split():
            # One that ended meanwhile is gone by itself.
            with contextlib.suppress(OSError):
                (home / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError:
            return False
        return True

    assert wait_for(gone, _EMPTY_LIMIT_S), f"the control group {group} does not get empty"
