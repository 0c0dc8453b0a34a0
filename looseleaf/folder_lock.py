"""A folder that one process has for its life."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def lock_folder(folder: Path, name: str) -> IO[str] | None:
    """Takes FOLDER/NAME for the life of the returned file, or returns None if another process has it.

    Makes the folder. Raises OSError where it cannot be made or written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open(folder / name, "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
