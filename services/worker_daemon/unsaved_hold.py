"""What a save left behind, as its execution sees it: variables that no version has, a version that the store lacks.

Workers are kept for such variables (design §3).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from looseleaf.errors import CapacityExceeded, LooseLeafError, PreconditionFailed
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.recipe.gpu_line import KEEP_S_MAX
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.services.worker_daemon.save_patience import STORE_FULL_REASONS
from looseleaf.units import format_bytes
from looseleaf.v1 import worker_daemon_pb2 as pb

# What a worker is held for that somebody asked to keep; no variable has such a name.
WISHED: Final = "%%gpu --keep"


def take_unsaved(
    facts: WorkerFacts, reply: Message, saved: pb.CellSaved, keep_unsaved_s: float, keep_s: float = 0.0
) -> None:
    """A save's unsaved variables go into `saved`; the worker is held for those that can be used further there.

    And for `keep_s` whatever it has, as the person asked.
    """
    here, kept = [], []
    for item in fields.sequence(reply, "unsaved", []):
        entry = fields.mapping({"unsaved": item}, "unsaved")
        name, reason, path = (fields.text(entry, key, "") for key in ("name", "reason", "path"))
        lives_here = fields.boolean(entry, "here", False)
        saved.unsaved.add(name=name, reason=reason, path=path, here=lives_here)
        if lives_here:
            here.append(name)
            kept += [name] if fields.boolean(entry, "alive", True) else []
    saved.unsaved_kept_s = keep_unsaved_s if kept else 0.0
    held_for = [*(kept if keep_unsaved_s else ()), *([WISHED] if keep_s > 0 else ())]
    facts.hold(here, held_for, time.monotonic() + max(saved.unsaved_kept_s, min(keep_s, KEEP_S_MAX)))


def waits_for_room(version: int, full: CapacityExceeded) -> str:
    """What a person is told whose cell was saved on its host although the store is `full`."""
    return (
        f"This cell's changes are saved and can be used (version {version}), but on this host only: "
        f"{_want_of_room(full)} or raise the limit; the changes then go to the store by themselves. Until then they "
        "are lost if the host is.\n"
    )


def held_up(why: LooseLeafError) -> str:
    """What a person is told whose cell has ended and cannot be saved while the store is full or out of reach."""
    if isinstance(why, CapacityExceeded) and why.reason in STORE_FULL_REASONS:
        wait = f"{_want_of_room(why)} or raise the limit; the cell then ends by itself"
    else:
        wait = f"the store does not take them ({why.reason}); the cell ends by itself when it does"
    return f"This cell's changes are not saved yet: {wait}. Its GPU is held meanwhile.\n"


def _want_of_room(full: CapacityExceeded) -> str:
    """Up to what the person may do, which is to go on."""
    whose = "its tenant's part of the store" if full.reason == "TENANT_FULL" else "the store"
    needed, available = (format_bytes(int(full.fields.get(key, 0))) for key in ("needed_bytes", "available_bytes"))
    largest = ", ".join(map(str, full.fields.get("largest_sessions", ())))
    return (
        f"{whose} has {available} left, and {needed} are needed ({full.reason}). Delete sessions you no longer need "
        f"(`looseleaf session rm`{f'; the largest: {largest}' if largest else ''})"
    )


def holder_gone(names: Iterable[str], why: str) -> PreconditionFailed:
    """Variables that a cell needs live in no process any more; `why` completes the sentence "..., and ..."."""
    listed = ", ".join(map(repr, names))
    text = f"this cell needs {listed}, which cannot be saved, and {why}: make it again in the cell that uses it"
    return PreconditionFailed("UNSAVED_GONE", text)
