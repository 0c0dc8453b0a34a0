"""A clock that is set, or jumps, changes nothing: neither scheduler nor hosts ever ask for the date (design §6)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Whatever decides who owns what, and when: times here come from the monotonic clock.
FOLDERS = (
    "services/scheduler", "services/worker_daemon", "services/frontend", "looseleaf/worker", "looseleaf/protocol",
)  # fmt: skip
WORDS = ("time.time", "datetime", "unix_ms")
DATES = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow"}


def test_scheduler_frontend_daemons_and_workers_never_ask_for_the_date() -> None:
    asked = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not any(word in text for word in WORDS):
                continue
            for node in ast.walk(ast.parse(text)):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if called in DATES or called.endswith(".unix_ms"):
                    asked.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert asked == []
