"""The dashboard asks for metrics and labels that the services have, each panel in a place of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "docker" / "grafana" / "looseleaf.json").read_text(encoding="utf-8"))
# Rows of the page, which tests/test_metrics_page.py compares with the code.
ROW = re.compile(r"^\| `(looseleaf_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",)}


def series() -> dict[str, set[str]]:
    """Every series that can be asked for, with its labels."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return {
        name + suffix: set(re.findall(r"`(\w+)`", labels)) | ({"le"} if suffix == "_bucket" else set())
        for name, kind, labels in ROW.findall(text) for suffix in SUFFIXES[kind]
    }  # fmt: skip


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_every_query_names_series_and_labels_that_exist() -> None:
    known = series()
    assert len(queries()) >= 18
    for query in queries():
        names = re.findall(r"\blooseleaf_\w+", query)
        assert names and set(names) <= known.keys(), query
        for name, matchers in re.findall(r"(looseleaf_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=", matchers)) <= known[name], query
        for listed in re.findall(r"by \(([^)]*)\)", query):
            assert set(re.split(r",\s*", listed)) <= set.intersection(*(known[name] for name in names)), query


def test_legends_show_labels_that_their_query_keeps() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            kept = set(re.split(r",\s*", "".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


def test_bounds_that_queries_name_are_bounds_of_buckets() -> None:
    from looseleaf.rpc.metrics import START_BUCKETS_S

    bounds = {bound for query in queries() for bound in re.findall(r'le="([^"]+)"', query)}
    assert bounds and bounds <= {str(float(bound)) for bound in START_BUCKETS_S}


def test_counters_and_histograms_are_asked_for_as_rates() -> None:
    for query in queries():
        for name in re.findall(r"\blooseleaf_\w+(?:_total|_bucket|_count|_sum)\b", query):
            assert re.search(rf"rate\({name}(\{{[^}}]*\}})?\[", query), query


def test_panels_do_not_overlap_and_use_the_chosen_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        cells = _cells(panel["gridPos"])
        assert not cells & taken and all(x < 24 for x, _y in cells), panel["title"]
        taken |= cells
        assert {source["uid"] for source in [panel["datasource"], *(t["datasource"] for t in panel["targets"])]} == {
            "${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def _cells(place: dict[str, Any]) -> set[tuple[int, int]]:
    return {
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }
