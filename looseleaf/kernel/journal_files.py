"""Where a session's output journal lies: `RUN_DIR/outputs/SESSION/000012.0`, three parts for each execution."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

JOURNAL_FOLDER: Final = "outputs"
# The beginning of what an execution has shown, and two parts of its end, of which the older one is written over.
HEAD: Final = "0"
TAILS: Final = ("1", "2")

_PART = re.compile(r"(\d{6,})\.[012]")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")


def journal_root(run_dir: str | Path) -> Path:
    """Where the journals of a run folder are."""
    return Path(run_dir) / JOURNAL_FOLDER


def folder_of(root: Path, session_id: str) -> Path:
    """The folder of a session; one whose id is no file name has one all the same."""
    return root / (session_id if _SESSION.fullmatch(session_id) else session_id.encode().hex()[:200] or "none")


def remove_journal(root: Path, session_id: str) -> bool:
    """Removes all that a session has shown; whether anything was there. A kernel that still runs begins anew."""
    folder = folder_of(root, session_id)
    there = folder.is_dir()
    # Another kernel may remove it too, to make room.
    shutil.rmtree(folder, ignore_errors=True)
    return there


def part_name(sequence: int, part: str) -> str:
    """The file of one part; `sequence` counts the session's executions from 1, over all its kernels."""
    return f"{sequence:06}.{part}"


def sequences_in(folder: Path) -> set[int]:
    """Executions of which something is kept."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    return {int(match[1]) for name in names if (match := _PART.fullmatch(name))}


def stats_in(folder: Path) -> list[os.stat_result]:
    """Of the files in `folder`; without what another kernel removes meanwhile, which may be all."""
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        with suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                found.append(entry.stat(follow_symlinks=False))
    return found
