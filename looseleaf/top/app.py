"""The full-screen view of `looseleaf top`; needs textual. Shows what a `look` gives, decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Static

from looseleaf.top.model import pool_line, store_line
from looseleaf.top.panels import PANELS, Panel

ROWS_SHOWN_MAX: Final = 200

Look = Callable[[], Awaitable[dict[str, Any]]]


class TopApp(App[None]):
    """Looks every `interval_s`; a look that is late is waited for, never doubled."""

    TITLE = "looseleaf top"
    CSS = """
    Static { padding: 0 1; }
    #problems { color: $error; }
    .title { text-style: bold; margin-top: 1; }
    DataTable { height: auto; max-height: 14; }
    """
    BINDINGS: ClassVar[list[tuple[str, str, str]]] = [  # type: ignore[assignment]
        ("q", "quit", "Quit"), ("r", "look_now", "Look now"), ("p", "toggle_pause", "Pause"),
    ]

    def __init__(self, look: Look, interval_s: float) -> None:
        super().__init__()
        self._look = look
        self._interval_s = interval_s
        self._looking = False
        self.paused = False

    def compose(self) -> ComposeResult:
        """Two lines on the whole, problems if there are any, a table for each panel."""
        yield Static("looking ...", id="summary", markup=False)
        yield Static("", id="problems", markup=False)
        with VerticalScroll():
            for panel in PANELS:
                yield Static(panel.title, id=f"title-{panel.key}", classes="title", markup=False)
                yield DataTable(id=panel.key, cursor_type="none", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """The columns, the first look and the clock."""
        for panel in PANELS:
            self.query_one(f"#{panel.key}", DataTable).add_columns(*panel.columns)
        self.action_look_now()
        self.set_interval(self._interval_s, self._tick)

    def _tick(self) -> None:
        if not self.paused:
            self.action_look_now()

    def action_look_now(self) -> None:
        """Looks beside the screen's own work, unless a look is under way."""
        if not self._looking:
            self._looking = True
            self.run_worker(self._look_and_show())

    def action_toggle_pause(self) -> None:
        """Stands still, or goes on."""
        self.paused = not self.paused
        self.sub_title = "paused" if self.paused else ""

    async def _look_and_show(self) -> None:
        try:
            self.show(await self._look())
        finally:
            self._looking = False

    def show(self, snapshot: dict[str, Any]) -> None:
        """Puts a snapshot on the screen."""
        self.query_one("#summary", Static).update(f"{pool_line(snapshot)}\n{store_line(snapshot)}")
        self.query_one("#problems", Static).update("\n".join(snapshot["problems"]))
        for panel in PANELS:
            self._fill(panel, snapshot)

    def _fill(self, panel: Panel, snapshot: dict[str, Any]) -> None:
        table = self.query_one(f"#{panel.key}", DataTable)
        rows = panel.rows(snapshot)
        table.clear()
        for row in rows[:ROWS_SHOWN_MAX]:
            # As they are: brackets in a notebook's name are no markup.
            table.add_row(*map(Text, row))
        left_out = len(rows) - ROWS_SHOWN_MAX
        note = f": {panel.empty}" if not rows else f" (and {left_out} more)" if left_out > 0 else ""
        self.query_one(f"#title-{panel.key}", Static).update(f"{panel.title}{note}")
        table.display = bool(rows)
