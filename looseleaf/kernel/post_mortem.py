"""`%tb` and `%debug` after a cell that failed on a worker: the text is here, its frames are not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

HINT: Final = (
    "LooseLeaf: cell [{count}] failed on a GPU process; its frames stayed there, so there is nothing to step through "
    "here. `%tb` shows the traceback again. `breakpoint()` in the cell stops there while it runs; %%cpu runs it here.\n"
)


class PostMortem:
    """Python's last exception, where that was a cell's elsewhere. Works on `shell`; main thread only."""

    def __init__(self, shell: Any) -> None:
        self._debugger = shell.debugger
        self._failure: BaseException | None = None
        self._count = 0
        shell.debugger = self.debugger

    def failed_elsewhere(self, count: int, ename: str, evalue: str, lines: Sequence[str]) -> None:
        """Cell number `count` ended with this error, which is the last one until another cell fails."""
        shown = {
            "_render_traceback_": lambda _self: list(lines),
            "__module__": "looseleaf.cell",
        }
        made = type(ename if ename.isidentifier() else "Error", (Exception,), shown)
        self._failure, self._count = made(evalue), count
        # As every kernel does; a cell that fails here sets them itself.
        sys.last_type, sys.last_value, sys.last_traceback = made, self._failure, None
        if sys.version_info >= (3, 12):
            sys.last_exc = self._failure

    def debugger(self, force: bool = False) -> None:
        """See InteractiveShell.debugger."""
        if self._failure is not None and getattr(sys, "last_value", None) is self._failure:
            print(HINT.format(count=self._count), file=sys.stderr, end="")
            return
        self._debugger(force=force)
