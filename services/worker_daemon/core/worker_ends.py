"""Why this daemon ends a worker: the word that figures count, and the sentence that people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A decision. `word` is one of END_WORDS; `sentence` completes "That process ..."."""

    word: str
    sentence: str


EARLIER_OWNER: Final = WorkerEnd("superseded", "belonged to an earlier owner of its notebook")
SPENT: Final = WorkerEnd("out_of_gpu_memory", "was ended as its cell had run out of GPU memory")
MADE_WAY: Final = WorkerEnd("made_way", "made way for another cell, after the time for which it was kept")
HOST_FULL: Final = WorkerEnd("made_way", "made way for another worker of its host")
INSTALLED_SINCE: Final = WorkerEnd("outdated", "was started before packages were installed")
LEFT_DEVICE: Final = WorkerEnd("left_device", "made way for one that is not bound to its GPU")
ASKED: Final = WorkerEnd("asked", "was ended as its notebook asked")
FAILURE: Final = WorkerEnd("failure", "was ended after a failure")
LEFTOVERS: Final = WorkerEnd("leftovers", "was ended with what its cell had left running")


def idle(keep_s: float) -> WorkerEnd:
    """It was used by nobody for as long as a worker is kept."""
    return WorkerEnd("idle", f"was idle for {keep_s:g} s")


def cut_off(why: str) -> WorkerEnd:
    """Its cell was broken off; `why` is a sentence."""
    return WorkerEnd("cell_cut_off", f"was ended with its cell ({why})")


# docs/metrics.md has them too.
END_WORDS: Final = frozenset({
    *(end.word for end in (EARLIER_OWNER, SPENT, MADE_WAY, HOST_FULL, INSTALLED_SINCE, LEFT_DEVICE, ASKED, FAILURE,
        LEFTOVERS)),
    idle(0).word, cut_off("").word,
})  # fmt: skip
