"""docs/faults.md: all faults are there, and each names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = 27


def test_every_fault_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _row in rows] == list(range(1, FAULTS + 1))
    for number, row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.rpartition(" | ")[2])
        assert named, f"fault {number} names no test"
        for path, name in named:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"fault {number}: {path} has no {name}"
