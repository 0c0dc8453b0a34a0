"""The table of a benchmark run, from its JSON.

    python bench/table.py out/bench.json              prints it as text
    python bench/table.py out/bench.json --into FILE  writes it in Markdown between the marks in FILE
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- bench table: begin -->"
END = "<!-- bench table: end -->"
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
HEADINGS = ("what", "median", "quartiles", "p95", "reference", "its median", "ratio", "target", "met")


def rows_of(benchmarks: Iterable[dict[str, Any]]) -> list[list[str]]:
    """One line of the table for each comparison, as text; `benchmarks` as in pytest-benchmark's JSON."""
    found = []
    for entry in benchmarks:
        info = entry["extra_info"]
        for row in info.get("rows", []):
            time_s, target = row["time_s"], row.get("target")
            theirs = row.get("reference_s")
            found.append([
                info["what"], duration(time_s["median"]), f"{duration(time_s['low'])} to {duration(time_s['high'])}",
                duration(time_s["p95"]), row["reference"] or "-", duration(theirs["median"]) if theirs else "-",
                as_ratio(row["ratio"]["median"]) if theirs else "-", target["text"] if target else "-",
                _verdict(target),
            ])  # fmt: skip
    return found


def _verdict(target: dict[str, Any] | None) -> str:
    if target is None:
        return "-"
    value = as_ratio(target["value"]) if target["kind"] == "ratio" else duration(target["value"])
    return ("met" if target["met"] else "not met") + f" ({value})"


def duration(seconds: float) -> str:
    """Three digits with the unit that suits them."""
    unit, factor = next((pair for pair in UNITS if abs(seconds) >= pair[1]), UNITS[-1])
    value = seconds / factor
    return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"


def as_ratio(value: float) -> str:
    """What is faster than its reference as a fraction, what is slower as a multiple."""
    return f"1/{1 / value:.3g}" if 0 < value < 0.5 else f"{value:.2f}"


def as_text(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    table = [HEADINGS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def as_markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *rows]
    return ["| " + " | ".join(row) + " |" for row in lines]


def machine_line(machine: dict[str, Any]) -> str:
    """One sentence on where the figures come from."""
    before, after = machine.get("load_average_before", ["?"]), machine.get("load_average_after", ["?"])
    packages, build = machine.get("packages", {}), machine.get("build", {})
    kind = "virtual machine" if machine.get("virtual_machine") else "machine"
    return (
        f"{machine.get('date_utc')}, {machine.get('cpus')} CPUs ({machine.get('cpu_model')}, {kind}), "
        f"{machine.get('memory_gib')} GiB of memory, Python {machine.get('python')}, torch {packages.get('torch')}, "
        f"hashing by {build.get('simd')}, CUDA {build.get('cuda')}, commit {machine.get('commit')}, "
        f"load average {before[0]} before and {after[0]} after."
    )


def insert(text: str, lines: Sequence[str], begin: str = BEGIN, end: str = END) -> str:
    """`text` with `lines` between the marks. Raises ValueError without the marks."""
    head, found_begin, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"no place for the table: put {begin} and {end} there")
    return "\n".join([head + begin, "", *lines, "", end]) + tail


def main() -> None:
    """Reads the JSON, prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="what `make bench` wrote")
    parser.add_argument("--into", type=Path, help="Markdown file with the two marks")
    options = parser.parse_args()
    found = json.loads(options.json.read_text())
    rows, machine = rows_of(found["benchmarks"]), machine_line(found["machine_info"])
    if options.into is None:
        print("\n".join([*as_text(rows), "", machine]))
    else:
        options.into.write_text(insert(options.into.read_text(), [*as_markdown(rows), "", machine]))


if __name__ == "__main__":
    main()
