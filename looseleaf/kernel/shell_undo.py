"""The shell's own memory of a cell that is to run again elsewhere: its number, text and results, and what it opened."""

from __future__ import annotations

import logging
import sys
from typing import Any

from looseleaf.worker.result_cache import set_results, tell_results

log = logging.getLogger("looseleaf.kernel")


class OpenedComms:
    """The comms that the kernel's `manager` gets from now on."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._before = set(manager.comms)

    def close(self) -> None:
        """Closes them; widgets too, so that the front end forgets their models."""
        widgets = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
        for comm_id in [some_id for some_id in self._manager.comms if some_id not in self._before]:
            try:
                widgets.get(comm_id, self._manager.comms.get(comm_id)).close()
            except Exception as error:
                # A person's or a library's own idea of closing; the cell runs again all the same.
                log.warning("comm_not_closed kind=%s", type(error).__name__)


class ShellUndo:
    """What `shell` remembers now, before the cell; `undo` makes it remember that again, `redo` the cell's text too.

    The history's database keeps the text under the cell's number, and must not get it there twice.
    """

    def __init__(self, shell: Any) -> None:
        history = shell.history_manager
        self._shell = shell
        self._count: int = shell.execution_count
        self._inputs = len(history.input_hist_raw), len(history.input_hist_parsed)
        self._newest = history._i00, history._i, history._ii, history._iii
        names = ("_i", "_ii", "_iii", f"_i{self._count}")
        self._bound = {name: shell.user_ns[name] for name in names if name in shell.user_ns}
        self._names = names
        self._results = tell_results(shell)
        self._shown = set(history.output_hist)
        # Inputs that were taken back, raw and parsed.
        self._taken: tuple[list[str], list[str]] = ([], [])

    def undo(self) -> None:
        """Number, inputs and results are those from before the cell; variables were made so already."""
        shell, history = self._shell, self._shell.history_manager
        shown = history.output_hist.keys() - self._shown
        raw, parsed = self._inputs
        self._taken = history.input_hist_raw[raw:], history.input_hist_parsed[parsed:]
        del history.input_hist_raw[raw:], history.input_hist_parsed[parsed:]
        history._i00, history._i, history._ii, history._iii = self._newest
        for name in self._names:
            if name in self._bound:
                shell.user_ns[name] = self._bound[name]
            else:
                shell.user_ns.pop(name, None)
        for number in shown:
            history.output_hist_reprs.pop(number, None)
        set_results(shell, self._results, shown)
        shell.execution_count = self._count
        shell.payload_manager.clear_payload()

    def redo(self) -> None:
        """After `undo`: the cell's text is the newest input again."""
        history = self._shell.history_manager
        history.input_hist_raw += self._taken[0]
        history.input_hist_parsed += self._taken[1]
        for raw in self._taken[0]:
            history._iii, history._ii, history._i, history._i00 = history._ii, history._i, history._i00, raw
            inputs = {"_i": history._i, "_ii": history._ii, "_iii": history._iii, f"_i{self._count}": raw}
            self._shell.push(inputs, interactive=False)
