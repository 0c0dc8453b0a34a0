from __future__ import annotations

import asyncio
import builtins
from typing import Any

import pytest

pytest.importorskip("textual", reason="the package textual is not installed")

from textual.widgets import DataTable, Static
from top_snapshots import NOTHING, ended, snapshot

from looseleaf.cli.top import _refuse_without_textual
from looseleaf.errors import Unsupported
from looseleaf.top.app import TopApp


class Looks:
    """Gives what a test put here; `may_end` holds a look up."""

    def __init__(self) -> None:
        head = {"session_id": "s-1", "title": "[/x] [b", "version": "1", "durable_version": "1", "updated_unix_ms": "0"}
        self.given = snapshot(pool={"ended": [ended("x-1", run_s=1.0)]}, sessions=[head])
        self.count = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> dict[str, Any]:
        self.count += 1
        await self.may_end.wait()
        return self.given


async def test_screen_shows_each_look_and_what_does_not_answer() -> None:
    looks = Looks()
    app = TopApp(looks, interval_s=3600.0)
    async with app.run_test(size=(140, 50)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.query_one("#gpus", DataTable).row_count == 2
        assert app.query_one("#runs", DataTable).get_row_at(0)[0].plain == "x-1"
        assert app.query_one("#sessions", DataTable).get_row_at(0)[1].plain == "[/x] [b"
        assert not app.query_one("#queue", DataTable).display
        assert "queue: no run waits" in str(app.query_one("#title-queue", Static).content)
        looks.given = NOTHING
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.query_one("#gpus", DataTable).row_count == 0
        assert "SCHEDULER_DOWN" in str(app.query_one("#problems", Static).content)
        assert "no answer" in str(app.query_one("#summary", Static).content)
        looks.may_end.clear()
        await pilot.press("r", "r", "r")
        assert looks.count == 3
        await pilot.press("p")
        assert app.paused
        looks.may_end.set()
        await pilot.press("q")
    assert app.return_code == 0


def test_missing_textual_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "textual":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=r"TEXTUAL_MISSING.*looseleaf\[top\].*--once"):
        _refuse_without_textual()
