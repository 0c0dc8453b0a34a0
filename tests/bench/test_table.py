from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, Target, compare
from table import BEGIN, END, as_markdown, as_ratio, duration, insert, rows_of

SCRIPT = Path(__file__).parents[2] / "bench" / "table.py"


def benchmark_entry() -> dict[str, Any]:
    rounds = Rounds({"ours": [[0.010], [0.010]], "theirs": [[0.1], [0.1]]})
    rows = [
        compare(rounds, "ours", "theirs", Target("ratio", 1 / 8, "<= 1/8")),
        compare(rounds, "ours", None, Target("time_s", 0.005, "<= 5 ms")),
        compare(rounds, "ours", "theirs", None),
    ]
    return {"extra_info": {"what": "a save", "rows": rows}}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ns"), (2.5e-7, "250 ns"), (0.0000125, "12.5 µs"), (0.0426, "42.6 ms"), (12.345, "12.3 s")],
)  # fmt: skip
def test_duration_has_three_digits_and_a_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ratio_of_what_is_faster_is_a_fraction() -> None:
    assert (as_ratio(0.125), as_ratio(0.9), as_ratio(2.0)) == ("1/8", "0.90", "2.00")


def test_rows_tell_reference_ratio_target_and_verdict() -> None:
    first, second, third = rows_of([benchmark_entry()])
    assert first == [
        "a save", "10 ms", "10 ms to 10 ms", "10 ms", "theirs", "100 ms", "1/10", "<= 1/8", "met (1/10)",
    ]  # fmt: skip
    assert second[4:] == ["-", "-", "-", "<= 5 ms", "not met (10 ms)"]
    assert third[4:] == ["theirs", "100 ms", "1/10", "-", "-"]


def test_table_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place"):
        insert("text without marks", [])


def test_script_replaces_what_is_between_the_marks(tmp_path: Path) -> None:
    found = {"benchmarks": [benchmark_entry()], "machine_info": {"date_utc": "2026-01-01 00:00", "cpus": 2}}
    (tmp_path / "bench.json").write_text(json.dumps(found))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        subprocess.run([sys.executable, SCRIPT, tmp_path / "bench.json", "--into", page], check=True)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert all(line in text for line in as_markdown(rows_of([benchmark_entry()])))
    assert "2026-01-01 00:00, 2 CPUs" in text
