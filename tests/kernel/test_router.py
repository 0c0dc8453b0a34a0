"""From an execute request to a recipe."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.ids import CellId, Version
from looseleaf.kernel.router import CellRequest, route
from looseleaf.recipe.log import CellRun, ExecutionLog
from looseleaf.recipe.name_facts import NameFacts, Payload


@pytest.mark.parametrize(
    ("metadata", "device", "priority"),
    [
        (None, "", "interactive"), ({}, "", "interactive"), ({"looseleaf": {"device": "gpu"}}, "gpu", "interactive"),
        ({"looseleaf": {"device": "cpu", "priority": "batch"}}, "cpu", "batch"),
        ({"looseleaf": {"device": "tpu", "priority": "root"}}, "", "interactive"),
        ({"looseleaf": ["gpu"]}, "", "interactive"), (["looseleaf"], "", "interactive"),
        ({"looseleaf": {"device": ["gpu"]}}, "", "interactive"),
    ],
)  # fmt: skip
def test_request_takes_known_wishes_only(metadata: Any, device: str, priority: str) -> None:
    request = CellRequest.of("x", None, metadata)
    assert (request.cell_id, request.device_override, request.priority) == ("", device, priority)


@pytest.mark.parametrize(
    ("source", "kept", "seconds"),
    [
        ("x", None, None), ("x", "60s", 60.0), ("x", 90, 90.0), ("x", "2m", 120.0), ("x", "soon", None),
        ("x", -1, None), ("x", True, None), ("x", 1e300, None), ("%%gpu --keep 5", 90, 5.0),
        ("%%gpu\nx = '--keep 5'", None, None), ("%%gpu --keep=1h", None, 600.0),
    ],
)  # fmt: skip
def test_time_to_keep_is_the_magics_then_the_metadatas(source: str, kept: Any, seconds: float | None) -> None:
    assert CellRequest.of(source, None, {"looseleaf": {"keep": kept}}).keep_s == seconds


def test_route_follows_what_variables_hold() -> None:
    log = ExecutionLog()
    log.record(CellRun(1, "a", "model = load()\nrate = 3", ok=True))
    facts = {
        "model": NameFacts("instance", "Net", "__main__", payloads={1: Payload("cuda:0", 1 << 30)}),
        "rate": NameFacts("value", "int", "builtins", flag=3, has_flag=True),
    }
    recipe = route(CellRequest("model(rate)", CellId("c")), log, facts, Version(7))
    assert recipe.label == "gpu" and recipe.names == ("model", "rate") and recipe.version == 7
    assert route(CellRequest("print(rate)", CellId("c")), log, facts, Version(7)).label == "cpu"
    forced = CellRequest("model(rate)", CellId("c"), device_override="cpu")
    assert route(forced, log, facts, Version(7)).label == "cpu"
