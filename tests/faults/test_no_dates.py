"""A clock that is set, or jumps, changes nothing: neither scheduler nor hosts ever ask for the date (design §6)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Whatever decides who owns what, and when: times here come from the monotonic clock.
FOLDERS = (
    "services/scheduler", "services/worker_daemon", "services/frontend", "looseleaf/worker", "looseleaf/protocol",
)  # fmt: skip
# What asks the clock that people set, called or handed on to be called; `unix_ms` is our own (looseleaf/clock.py).
DATES = frozenset({
    *(f"time.{name}" for name in (
        "time", "time_ns", "ctime", "asctime", "localtime", "gmtime", "strftime", "CLOCK_REALTIME", "CLOCK_TAI",
    )),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
})  # fmt: skip
# Without one of these a text has none of them, by whatever name.
WORDS = re.compile(r"unix_ms|from time\b|\bimport\b.*\btime as|datetime|" + "|".join(
    re.escape(name) + r"\b" for name in DATES if name.startswith("time.")
))  # fmt: skip


def lines_that_ask(text: str) -> list[int]:
    """Lines of a module that ask for the date, ascending, whatever name it has given to what it imports."""
    if not WORDS.search(text):
        return []
    names: dict[str, str] = {}
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update({each.asname: each.name for each in node.names if each.asname})
        elif isinstance(node, ast.ImportFrom):
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            first, dot, rest = ast.unparse(node).partition(".")
            ours = isinstance(node, ast.Attribute) and node.attr == "unix_ms"
            if ours or names.get(first, first) + dot + rest in DATES:
                found.add(node.lineno)
    return sorted(found)


def test_scheduler_frontend_daemons_and_workers_never_ask_for_the_date() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    asked = [f"{path.relative_to(ROOT)}:{line}" for path in paths for line in lines_that_ask(path.read_text())]
    assert len(paths) > 100 and asked == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\nt = time.time()", "import time\nt = time.time_ns()", "import time as t\nx = t.time()",
        "from time import time\nt = time()", "from time import time as now\nt = now()",
        "import time\nrun(clock=time.time)",
        "import time\nt = time.localtime()", "from time import strftime\nt = strftime('%H')",
        "import time\nt = time.clock_gettime(time.CLOCK_REALTIME)",
        "import datetime\nt = datetime.datetime.now()", "import datetime as dt\nt = dt.datetime.now(tz=dt.UTC)",
        "from datetime import datetime\nt = datetime.utcnow()", "from datetime import datetime as D\nt = D.today()",
        "from datetime import date\nt = date.today()", "import datetime\nt = datetime.date.today()",
        "from looseleaf.clock import SystemClock\nt = SystemClock().unix_ms()",
    ],
)  # fmt: skip
def test_every_way_to_ask_for_the_date_is_seen(text: str) -> None:
    assert lines_that_ask(text) == [2]


@pytest.mark.parametrize(
    "text",
    [
        "import time\nt = time.monotonic()", "from time import monotonic\nt = monotonic()",
        "import time\ntime.sleep(time.perf_counter())", "t = loop.time()",
        "from datetime import timedelta\nt = timedelta(1)",
    ],
)  # fmt: skip
def test_other_clocks_are_no_date(text: str) -> None:
    assert lines_that_ask(text) == []
