"""What a session has learned of its cells by running them: did they use a GPU, how much of it, how long (design §4).

Pure; part of the session's log, and so the same in the kernel and in the frontend. See learning.py for what follows.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

# Guesses that one session remembers; the least recently run goes first, and is guessed again.
LESSONS_MAX: Final = 4096
# Runs of one guess that count; older ones do not.
RUNS_REMEMBERED: Final = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a cell. `guess`: see learning.guess_of. `peak_bytes`: the most that it held on GPUs, 0 if not known.

    `duration_s`: of its code, without waiting for a GPU and without the save.
    """

    guess: str
    touched_gpu: bool
    peak_bytes: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the newest runs of one guess have shown. `touched`: of each, oldest first; never empty."""

    touched: tuple[bool, ...]
    peak_bytes: int
    duration_s: float

    @property
    def uses_gpu(self) -> bool:
        """One run that did decides: a cell goes different ways, and a GPU that is not used costs less than a rerun."""
        return any(self.touched)


class Lessons:
    """The lessons of one session, at most LESSONS_MAX."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Lesson] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def observe(self, run: Observation) -> None:
        """One more run has ended. An observation without a guess teaches nothing."""
        if not run.guess:
            return
        old = self._found.pop(run.guess, None)
        touched = (*(old.touched if old is not None else ()), run.touched_gpu)[-RUNS_REMEMBERED:]
        peak_bytes = max(run.peak_bytes, old.peak_bytes if old is not None else 0)
        self._found[run.guess] = Lesson(touched, peak_bytes, run.duration_s)
        if len(self._found) > LESSONS_MAX:
            self._found.popitem(last=False)

    def of(self, guess: str) -> Lesson | None:
        """What is known of a guess."""
        return self._found.get(guess)
