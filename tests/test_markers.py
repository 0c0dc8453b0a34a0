"""What `make slow` relies on when it asks for the files that name the marker, and no others."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_slow_tests_that_are_no_soak_are_marked_in_their_own_files() -> None:
    elsewhere = [
        f"{path.relative_to(TESTS)}: {line.strip()}"
        for path in TESTS.rglob("*.py")
        if not path.name.startswith("test_")
        for line in path.read_text().splitlines()
        if re.search(r"mark\.slow", line) and not re.search(r"mark\.soak", line)
    ]
    assert elsewhere == []


def test_marker_is_named_in_full_where_it_is_used() -> None:
    """`from pytest import mark` or a marker by another name would hide a file from `make slow`."""
    renamed = re.compile(r"from pytest import.*\bmark\b|getattr\((pytest\.)?mark|= pytest\.mark$", re.MULTILINE)
    assert [path for path in TESTS.rglob("*.py") if path != Path(__file__) and renamed.search(path.read_text())] == []


def test_make_slow_asks_for_those_files() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    assert r"grep -rl 'mark\.slow' tests --include='test_*.py' --exclude-dir=golden" in makefile
