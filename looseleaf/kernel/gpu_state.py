"""What a page shows of the session's GPU, as pure rules over what the kernel sees (design §9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from looseleaf.kernel.left_notes import describe
from looseleaf.protocol.frames import Message

# Events of the daemon that change what is shown; all others are passed over unread.
WATCHED: Final = frozenset({"queue", "lease", "stage", "left"})
LOST_REASONS: Final = frozenset({"WORKER_LOST", "HOST_LOST", "CELL_LOST", "CLUSTER_LOST"})
# By the wire's WorkerStage, whose numbers the daemon passes on.
_OF_STAGE: Final = {6: "running", 7: "saving"}

Shown = dict[str, Any]


class GpuState:
    """Follows edits, runs and events; `shown` is what holds now. Not thread-safe.

    `shown["state"]` is one of `released`, `preparing`, `ready`, `queued`, `running`, `saving`, `held`, `lost`,
    `offline`; beside it `cell_id` and, where they say something, `prepare_ms`, `position`, `reason`, `gpu`, `host`.
    """

    def __init__(self) -> None:
        self._offline = ""
        self._held = ""
        self._lost = ""
        self._edit: Shown | None = None
        self._run: Shown | None = None
        # The cell whose last text needed no GPU: while it is typed at, nothing is shown as being prepared.
        self._cpu_cell = ""
        # The cell whose text is looked at. `_passed` counts what makes a preparation nobody's: a run, leaving the cell.
        self._edited = ""
        self._passed = 0
        self._edit_began_at = 0

    @property
    def shown(self) -> Shown:
        """A copy. A running cell comes before everything else, a cell that is edited before the past."""
        if self._run is not None:
            return dict(self._run)
        if self._offline:
            return {"state": "offline", "reason": self._offline}
        if self._held:
            return {"state": "held", "reason": self._held}
        if self._edit is not None:
            return dict(self._edit)
        if self._lost:
            return {"state": "lost", "reason": self._lost}
        return {"state": "released"}

    # -- edits -----------------------------------------------------------------------------------------

    def edit_began(self, cell_id: str) -> None:
        """A text is looked at and, if it needs a GPU, prepared for."""
        self._edited, self._edit_began_at = cell_id, self._passed
        if not cell_id or cell_id != self._cpu_cell:
            self._edit = {"state": "preparing", "cell_id": cell_id}

    def edit_ended(self, cell_id: str, told: Mapping[str, Any]) -> None:
        """`told`: the answer of the preparation (`worker_id`, `prepare_ms`, `recipe`).

        One that was on its way when a cell was run, or this one left, makes nothing ready.
        """
        self._offline = ""
        self._edit = None
        recipe = told.get("recipe")
        label = recipe.get("label") if isinstance(recipe, Mapping) else None
        self._cpu_cell = cell_id if label == "cpu" else ""
        if told.get("worker_id") and self._edit_began_at == self._passed:
            self._lost = ""
            self._edit = {"state": "ready", "cell_id": cell_id, "prepare_ms": told.get("prepare_ms", 0)}

    def edit_failed(self, reason: str, text: str) -> None:
        """Nothing could be prepared."""
        self._edit = None
        self._offline = text if reason == "NO_CLUSTER" else ""

    def edit_left(self, cell_id: str) -> None:
        """Nobody edits this cell any more; empty: whichever it was."""
        if cell_id in ("", self._edited):
            self._edit = None
            self._passed += 1

    # -- runs ------------------------------------------------------------------------------------------

    def run_began(self, cell_id: str) -> None:
        """A cell is to run on a GPU: what was ready is used or stale now."""
        self._run = {"state": "preparing", "cell_id": cell_id}
        self._edit = None
        self._passed += 1
        self._lost = ""

    def run_ended(self, reply: Mapping[str, Any]) -> None:
        """Its reply is known; does nothing if no cell runs."""
        if self._run is None:
            return
        self._run = None
        ename = reply.get("ename")
        self._offline = str(reply.get("evalue", "")) if ename == "NO_CLUSTER" else ""
        if ename in LOST_REASONS:
            self._lost = str(reply.get("evalue", "")) or str(ename)

    def event(self, message: Message) -> None:
        """One event of the daemon, of the running cell or of what an earlier one left."""
        kind = message.get("kind")
        if kind == "left":
            items = message.get("items")
            held = message.get("state") == "held"
            self._held = describe(items if isinstance(items, list) else []) if held else ""
        elif self._run is not None:
            cell_id = self._run["cell_id"]
            if kind == "queue":
                told = {key: message.get(key) for key in ("position", "reason")}
                self._run = {"state": "queued", "cell_id": cell_id, **told}
            elif kind == "lease":
                told = {"gpu": message.get("gpu"), "host": message.get("host_id")}
                self._run = {"state": "preparing", "cell_id": cell_id, **told}
            elif kind == "stage":
                self._run["state"] = _OF_STAGE.get(message.get("stage", 0), "preparing")
