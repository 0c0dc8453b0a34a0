"""Puts `nvidia_smi.py` on the search path of a process and its children, where NVIDIA's program is not (design §4)."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from looseleaf.devices.description import POOL_VARIABLE, GpuDescription, pool_text

SCRIPT: Final = Path(__file__).with_name("nvidia_smi.py")
PROGRAM: Final = "nvidia-smi"
# Beside the daemon's socket.
SMI_FOLDER: Final = "bin"


def offer_smi(
    environ: MutableMapping[str, str], folder: Path, kind: str, count: int, description: GpuDescription
) -> None:
    """`nvidia-smi` of a process with the environment `environ` then tells of `count` such GPUs.

    A program that is there already stays in charge of real GPUs: it knows more. Without GPUs, or where `folder` cannot
    be written, nothing of what was offered before is left but the entry of the search path, which does no harm.
    """
    entries = environ.get("PATH", os.defpath).split(os.pathsep)
    others = os.pathsep.join(entry for entry in entries if entry and Path(entry) != folder)
    is_there = kind == "cuda" and shutil.which(PROGRAM, path=others) is not None
    if kind == "none" or count == 0 or is_there or not _place(folder):
        environ.pop(POOL_VARIABLE, None)
        return
    environ[POOL_VARIABLE] = pool_text(count, description)
    if str(folder) not in entries:
        environ["PATH"] = os.pathsep.join([str(folder), *entries])


def withdraw_smi(folder: Path) -> None:
    """Removes the program and the folder; other files that are in it stay."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{PROGRAM}*"):
            path.unlink()
        folder.rmdir()


def _place(folder: Path) -> bool:
    """Writes the program into `folder`, which is this user's alone; whether it is there."""
    program = folder / PROGRAM
    # Whoever has no description of a pool, as in another session's shell, gets the machine's own program.
    text = (
        f'#!/bin/sh\nLOOSELEAF_SMI_FOLDER={shlex.quote(os.path.realpath(folder))} '
        f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(SCRIPT))} "$@"\n'
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            # What others may put there must not be on anybody's search path.
            return False
        if program.is_file() and program.read_text(encoding="utf-8") == text:
            return True
        draft = folder / f".{PROGRAM}.{os.getpid()}"
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o700)
        draft.replace(program)
    except OSError:
        return False
    return True
