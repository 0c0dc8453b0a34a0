"""What one execution took: its times, its saved bytes, its GPU seconds (design §6, honest accounting)."""

from __future__ import annotations

import time

from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb


def misses(ended: Message) -> list[str]:
    """What a cell that ended lacked of its recipe, as kinds of `looseleaf_recipe_miss_total`.

    "var": it ended with the error of a variable whose value was not brought; "import": it imported installed packages
    that were not; "device": it was given a GPU and used none.
    """
    found = []
    reply = fields.mapping(ended, "reply", {})
    if reply.get("status") == "error" and str(reply.get("evalue", "")).startswith("NOT_RESTORED"):
        found.append("var")
    if fields.integer(ended, "late_imports", 0):
        found.append("import")
    if ended.get("first_touch_s") is None:
        found.append("device")
    return found


class CellTimes:
    """The times of one execution from its arrival at this daemon on, and the figures that follow from them.

    `elapsed_ms`: since Run until then; `granted_s`: when the lease was granted, on the monotonic clock. `arrived_s`:
    when it arrived, None: now.
    """

    def __init__(self, elapsed_ms: float, granted_s: float, arrived_s: float | None = None) -> None:
        self.figures = scheduler_pb2.ExecutionFigures()
        self.started_s: float | None = None
        self.ended_s: float | None = None
        # On the monotonic clock.
        self.arrived_s = time.monotonic() if arrived_s is None else arrived_s
        self._elapsed_ms = elapsed_ms
        self._granted_s = granted_s
        self._first_touch_s: float | None = None
        self._peak_bytes = 0

    def since_arrival_ms(self) -> float:
        """Milliseconds since the execution came here."""
        return (time.monotonic() - self.arrived_s) * 1000

    def resident_since(self, since_s: float) -> None:
        """The worker's payloads have lain on the device since then, unused."""
        self.figures.gpu_resident_s = time.monotonic() - since_s

    def prepared(self, ahead_ms: float | None) -> None:
        """The closures are loaded; `ahead_ms`: the preparation took that long before Run, None: it was made now."""
        self.figures.prepare_ms = self.since_arrival_ms() if ahead_ms is None else ahead_ms

    def started(self, at_s: float | None = None) -> None:
        """The first statement runs, since `at_s`, None: now."""
        self.started_s = time.monotonic() if at_s is None else at_s
        self.figures.start_ms = self._elapsed_ms + (self.started_s - self.arrived_s) * 1000

    def ended(self, message: Message) -> None:
        """The cell ended, as the worker's message says."""
        self.ended_s = time.monotonic()
        self.figures.run_s = fields.number(message, "run_s", 0.0)
        self._peak_bytes = fields.integer(message, "peak_bytes", 0)
        if message.get("first_touch_s") is not None:
            # The worker counts from its first statement.
            self._first_touch_s = (self.started_s or self.arrived_s) + fields.number(message, "first_touch_s")

    def saved(self, reply: Message) -> None:
        """What the worker's save moved."""
        self.figures.dirty_regions = fields.integer(reply, "dirty_regions", 0)
        self.figures.total_regions = fields.integer(reply, "total_regions", 0)
        self.figures.bytes_moved = fields.integer(reply, "bytes_moved", 0)

    def finish(self, saved: pb.CellSaved) -> None:
        """The cell's GPU work is over; its figures so far go into `saved`."""
        now_s = time.monotonic()
        if self.ended_s is not None:
            self.figures.save_ms = (now_s - self.ended_s) * 1000
        if self._first_touch_s is not None:
            self.figures.gpu_pinned_s = max(0.0, now_s - self._first_touch_s)
        self.released()
        saved.figures.CopyFrom(self.figures)
        saved.peak_device_bytes = self._peak_bytes

    def released(self) -> None:
        """The lease ends now."""
        self.figures.gpu_held_s = time.monotonic() - self._granted_s
