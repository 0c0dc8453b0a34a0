"""docs/metrics.md names every metric that the code serves with its kind and labels, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from looseleaf.services.worker_daemon.core.worker_ends import END_WORDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metrics.md"
KINDS = ("Counter", "Gauge", "Histogram")
FILES = (ROOT / "looseleaf" / "rpc" / "metrics.py", *sorted((ROOT / "services").glob("*/metrics.py")))
# Ids and texts of which there is no end: they belong into logs.
UNBOUNDED = {"session", "session_id", "execution", "execution_id", "exec_id", "worker", "worker_id", "cell", "cell_id"}

Metric = tuple[str, frozenset[str]]


def served() -> dict[str, Metric]:
    """Every metric that is made in the code by its full name: kind and labels."""
    found = {}
    for path in FILES:
        for call in _calls(path):
            name, kind = str(ast.literal_eval(call.args[0])), ast.unparse(call.func)
            labels = ast.literal_eval(call.args[2]) if len(call.args) > 2 else []
            found[f"{name}_total" if kind == "Counter" else name] = (kind.lower(), frozenset(labels))
    return found


def _calls(path: Path) -> Iterator[ast.Call]:
    text = path.read_text(encoding="utf-8")
    # Most files make none, and reading their syntax costs more than this.
    for node in ast.walk(ast.parse(text if '"looseleaf_' in text else "")):
        named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS
        if named and node.args and str(getattr(node.args[0], "value", "")).startswith("looseleaf_"):
            yield node


def documented() -> dict[str, Metric]:
    """Every row of the page's tables."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(looseleaf_\w+)` \| (\w+) \|([^|]*)\|", text, re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_page_has_every_metric_and_no_other() -> None:
    assert documented() == served()


def test_every_metric_is_found() -> None:
    assert {path.parent.name for path in FILES} == {
        "rpc", "checkpoint_store", "frontend", "scheduler", "worker_daemon"}
    made_elsewhere = {
        path for path in (ROOT / "services").rglob("*.py") if path not in FILES and any(_calls(path))}
    assert made_elsewhere == set()


def test_names_and_labels_follow_the_rules() -> None:
    for name, (kind, labels) in served().items():
        assert name.startswith("looseleaf_") and not labels & UNBOUNDED
        assert kind != "histogram" or name.endswith(("_seconds", "_bytes")), name


def test_page_has_every_reason_for_which_a_host_ends_a_worker() -> None:
    [row] = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "`looseleaf_worker_exit_total`" in line]
    assert set(re.findall(r"`(\w+)`", row)) >= END_WORDS
