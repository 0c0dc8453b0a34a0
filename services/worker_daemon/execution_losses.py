"""What a person is told whose cell failed for another reason than its own: what happened, and what state is valid."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import structlog

from looseleaf.errors import Internal, LooseLeafError
from looseleaf.ids import Version

log = structlog.get_logger()


@dataclass(frozen=True)
class FailedCell:
    """How far it had come. `start`: the version that it began from; `committed`: that its save made, 0 if it made none.

    `unanswered`: the store was asked to commit and did not say whether it has. `handed_over`: its first statement may
    have run. `ended`: its last one has.
    """

    start: Version
    committed: Version
    unanswered: bool
    handed_over: bool
    ended: bool

    def loss(self, error: LooseLeafError) -> str:
        """The text of what `error` means for the session's variables."""
        what = error.message or error.reason
        if self.committed:
            return f"{what}; its changes had been saved already (version {self.committed})"
        valid = f"the variables are those of version {self.start}; run the cell again"
        if self.unanswered:
            doubt = "the store did not say whether it has them: the next cell sees them if so, else"
            return f"{what} (while its changes were being saved), and {doubt} {valid}"
        if not self.handed_over:
            return f"{what} (before the cell ran); nothing was run, {valid}"
        when = "while its changes were being saved" if self.ended else "while the cell ran"
        return f"{what} ({when}); this cell's changes are lost, {valid}"


def fault(error: Exception) -> LooseLeafError:
    """A fault of ours as the person sees it; the log has the rest."""
    error_id = secrets.token_hex(8)
    log.error("execution_failed_unexpectedly", error_id=error_id, exc_info=error)
    text = f"LooseLeaf met a fault of its own; the daemon's log has it as {error_id}"
    return Internal("BUG", text, error_id=error_id)
