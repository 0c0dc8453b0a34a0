"""When the state of CPU cells is committed: after their reply, out of the way of the next cell (design §3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Long enough that "run all" goes from cell to cell without a commit between, short next to a person's pause.
IDLE_DELAY_S: Final = 0.25
# A kernel that is never idle commits at the latest after this much uncommitted work.
UNCOMMITTED_CHANGES_MAX: Final = 50
UNCOMMITTED_S_MAX: Final = 30.0
# A policy that commits for nobody's sake never does.
NEVER_S: Final = 1e9


@dataclass
class CommitPolicy:
    """Pure: told of events with the time in seconds, says when to commit.

    A new session counts as changed: its working directory and its settings were never saved. `commit_idle` False: a
    commit is made only when it is asked for.
    """

    commit_idle: bool = True
    uncommitted: int = 1
    oldest_s: float | None = None
    # How much more than the limits may be uncommitted: doubled by each commit that was broken off.
    patience: int = 1
    # The last commit was for one cell's sake and left out bytes that the cell does not need.
    lazy: bool = False

    @property
    def has_changes(self) -> bool:
        """Something may have changed since the last commit."""
        return self.uncommitted > 0

    @property
    def pending(self) -> bool:
        """An idle kernel has something to commit."""
        return self.has_changes or self.lazy

    def changed(self, now_s: float) -> None:
        """A cell or a callback ended."""
        self.uncommitted += 1
        if self.oldest_s is None:
            self.oldest_s = now_s

    def delay_s(self, now_s: float) -> float:
        """How long the kernel must have been idle before it commits: 0 when a commit is overdue."""
        if not self.commit_idle:
            return NEVER_S
        late = self.oldest_s is not None and now_s - self.oldest_s >= UNCOMMITTED_S_MAX * self.patience
        return 0.0 if late or self.uncommitted >= UNCOMMITTED_CHANGES_MAX * self.patience else IDLE_DELAY_S

    def gave_way(self) -> None:
        """A commit was broken off for a cell: where cells follow at once, each further try would only cost time."""
        self.patience *= 2

    def committed(self, *, lazy: bool = False) -> None:
        """A commit took in everything, or all but bytes that nobody needs yet: these are as old as they were."""
        self.uncommitted, self.lazy = 0, lazy
        if not lazy:
            self.oldest_s, self.patience = None, 1
