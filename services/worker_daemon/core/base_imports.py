"""What a base goes without so that it serves: imports at which its starts failed (import-cache study §4.2)."""

from __future__ import annotations

from typing import Final

# What is imported when nothing is left of what was configured.
LAST_IMPORT: Final = "numpy"


class BaseImports:
    """`left`: what the next start imports, in order. Starts nothing itself."""

    def __init__(self, configured: tuple[str, ...]) -> None:
        self.left = configured
        self._unfit: set[str] = set()
        # The import at which the last start ended or was late.
        self._failed_at = ""

    @property
    def starts_max(self) -> int:
        """More in a row cannot all have been the imports' fault."""
        return 2 * len(self.left) + 1

    def served(self) -> None:
        """A start went well."""
        self._failed_at = ""

    def blame(self, culprit: str, name: str) -> bool:
        """A start failed: `culprit` made the process unfit, or it ended or was late at `name`; both may be empty.

        Whether the next start may go better. The host may be why a start ended or was late, once; at the second time
        running that import is left out as a culprit is, with its parts.
        """
        again, self._failed_at = name == self._failed_at, name
        if culprit or (name and again):
            return self._leave_out(culprit or name)
        return bool(name)

    def _leave_out(self, name: str) -> bool:
        out = {other for other in self.left if other == name or other.startswith(f"{name}.")}
        self._unfit |= out
        self.left = tuple(other for other in self.left if other not in out)
        if out and not self.left and LAST_IMPORT not in self._unfit:
            self.left = (LAST_IMPORT,)
        return bool(out)
