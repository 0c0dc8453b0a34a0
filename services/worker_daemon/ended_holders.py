"""Workers that ended with variables that no version has: a cell that needs one must be told how (design §3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from looseleaf.ids import WorkerId
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts

ENDED_HOLDERS_MAX: Final = 64
# For how long they are told to the scheduler.
ENDED_HOLDERS_TOLD_S: Final = 600.0


@dataclass(frozen=True)
class EndedHolder:
    """A worker that ended with variables that no version has. `why` completes the sentence "That process ..."."""

    worker_id: WorkerId
    why: str
    ended_s: float


class EndedHolders:
    """The last `ENDED_HOLDERS_MAX` of them."""

    def __init__(self) -> None:
        self._ended: deque[EndedHolder] = deque(maxlen=ENDED_HOLDERS_MAX)

    def note(self, facts: WorkerFacts, how: str, now_s: float) -> None:
        """A worker has ended; `how`: as its process tells, unless its end was decided here."""
        if facts.unsaved:
            why = facts.end.sentence if facts.end is not None else how
            self._ended.append(EndedHolder(facts.worker_id, why, now_s))

    def told(self, now_s: float) -> list[EndedHolder]:
        """Those that ended lately."""
        return [ended for ended in self._ended if now_s - ended.ended_s < ENDED_HOLDERS_TOLD_S]

    def how_ended(self, worker_id: WorkerId | None) -> str:
        """Completes the sentence "The process that kept it ..."."""
        return next((one.why for one in self._ended if one.worker_id == worker_id), "has ended")
