"""What a person is told of their session, once, with the next cell: who moved it, and what could not be followed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from looseleaf.kernel.lost_versions import lost_text

# What of versions could not be followed is told each once, so many in a session.
PROBLEMS_TOLD_MAX: Final = 100


class SessionNews:
    """Collects it until `take`."""

    def __init__(self) -> None:
        self._moved = ""
        # Parts of versions that could not be followed: all that were told of, and those that are to be told of.
        self._told: set[str] = set()
        self._not_followed: list[str] = []

    def checked_out(self, source: int, version: int) -> None:
        """Somebody else took the session back to the version `source`, as `version`."""
        self._moved = (
            f"LooseLeaf: this session was taken back to version {source} from outside; its variables are those of "
            f"that version now. `%looseleaf checkout {version - 1}` goes back; what this kernel had not saved "
            "by then is gone\n"
        )

    def fell_back(self, version: int, lost: int, cells: Sequence[str]) -> None:
        """The store has lost the `lost` versions behind `version`, and with them what `cells` did."""
        self._moved = lost_text(version, lost, cells)

    def not_followed(self, problems: Iterable[str]) -> None:
        """Parts of a version that this process could not follow."""
        for problem in problems:
            if problem not in self._told and len(self._told) < PROBLEMS_TOLD_MAX:
                self._told.add(problem)
                self._not_followed.append(problem)

    def take(self) -> str:
        """All of it, once."""
        moved, self._moved = self._moved, ""
        fresh, self._not_followed = self._not_followed, []
        return moved + "".join(
            f"LooseLeaf: a cell that ran elsewhere set what could not be followed here: {problem}. Cells on the CPU do "
            "without it\n"
            for problem in fresh
        )
