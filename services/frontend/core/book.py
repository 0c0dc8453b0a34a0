"""What the frontend remembers of sessions: logs, edits, recipes; bounded, no I/O, rebuilt from the kernels at need.

A session that is forgotten costs its kernel one resend: the next call is refused with `SESSION_LOG_STALE`.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from looseleaf.errors import PreconditionFailed
from looseleaf.ids import SessionId
from looseleaf.recipe import CellRun, ExecutionLog, Recipe, source_hash

# Recipes kept per session: the cells that a person goes back and forth between.
RECIPES_PER_SESSION_MAX = 64
# After so long without a newer edit a lower number is a front end that began to count anew, not a late message.
EDIT_ORDER_S = 5.0


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """What a recipe depends on: the text with its overrides, the state, the log, the person's own modules."""

    source_hash: str
    cell_id: str
    device_override: str
    editing: bool
    epoch: int
    version: int
    log_length: int
    local_modules: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class SessionEntry:
    """One session. `fingerprints[i]` tells run i + 1 from another run of the same number."""

    log: ExecutionLog = field(default_factory=ExecutionLog)
    fingerprints: array[int] = field(default_factory=lambda: array("Q"))
    epoch: int = 0
    edit_sequence: int = 0
    edited_at_s: float = float("-inf")
    recipes: OrderedDict[RecipeKey, Recipe] = field(default_factory=OrderedDict)

    def forget_log(self) -> None:
        """The kernel began a new log."""
        self.log = ExecutionLog()
        self.fingerprints = array("Q")
        self.recipes.clear()


class SessionBook:
    """All sessions, least recently used first; at most `sessions_max`. Belongs to one thread."""

    def __init__(self, *, sessions_max: int, runs_max: int) -> None:
        self._sessions_max = sessions_max
        self._runs_max = runs_max
        self._sessions: OrderedDict[SessionId, SessionEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def entry(self, session_id: SessionId) -> SessionEntry:
        """The session's entry, now the most recently used; a new one if it is not known."""
        entry = self._sessions.get(session_id)
        if entry is None:
            entry = self._sessions[session_id] = SessionEntry()
            while len(self._sessions) > self._sessions_max:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(session_id)
        return entry

    def record(self, session_id: SessionId, runs: Sequence[CellRun]) -> int:
        """Adds what is next of `runs`; returns the sequence of the next run that is lacking.

        Runs already here are passed over. One that differs from the run of its number belongs to a new log of a
        restarted kernel: the old log is forgotten. What follows a gap is not taken. Beyond `runs_max` runs a restarted
        kernel is recognised by its epoch only.
        """
        entry = self.entry(session_id)
        for run in runs:
            mark = _fingerprint(run)
            if 1 <= run.sequence <= len(entry.fingerprints):
                if entry.fingerprints[run.sequence - 1] == mark:
                    continue
                entry.forget_log()
            if run.sequence != entry.log.length + 1:
                break
            if len(entry.fingerprints) < self._runs_max:
                entry.fingerprints.append(mark)
            entry.log.record(run)
        return entry.log.length + 1

    def check_log(self, entry: SessionEntry, log_length: int, epoch: int) -> None:
        """Raises PreconditionFailed `SESSION_LOG_STALE` if the log here is shorter than the kernel's.

        A longer log of an earlier epoch is that of a kernel that is gone: it is forgotten.
        """
        if epoch != entry.epoch:
            if entry.epoch and log_length < entry.log.length:
                entry.forget_log()
            entry.epoch = epoch
            entry.recipes.clear()
        if entry.log.length < log_length:
            raise PreconditionFailed(
                "SESSION_LOG_STALE",
                f"The frontend has {entry.log.length} of {log_length} runs; record the missing ones and ask again.",
                next_sequence=entry.log.length + 1,
            )

    def admit_edit(self, session_id: SessionId, edit_sequence: int, now_s: float) -> bool:
        """Whether an edit is the newest one seen; a repeat of the newest is."""
        entry = self.entry(session_id)
        if edit_sequence < entry.edit_sequence and now_s - entry.edited_at_s < EDIT_ORDER_S:
            return False
        entry.edit_sequence, entry.edited_at_s = edit_sequence, now_s
        return True

    def is_newest_edit(self, session_id: SessionId, edit_sequence: int) -> bool:
        """Whether no other edit was admitted since."""
        return self.entry(session_id).edit_sequence == edit_sequence

    def recipe(self, entry: SessionEntry, key: RecipeKey) -> Recipe | None:
        """The recipe derived before for exactly this, if it is still here."""
        found = entry.recipes.get(key)
        if found is not None:
            entry.recipes.move_to_end(key)
        return found

    def remember(self, entry: SessionEntry, key: RecipeKey, recipe: Recipe) -> None:
        """Keeps a recipe, forgetting the least recently used beyond the limit."""
        entry.recipes[key] = recipe
        entry.recipes.move_to_end(key)
        while len(entry.recipes) > RECIPES_PER_SESSION_MAX:
            entry.recipes.popitem(last=False)


def _fingerprint(run: CellRun) -> int:
    return int(source_hash(f"{run.cell_id}\0{run.ok}\0{run.source}")[:16], 16)
