"""A person looks at what a notebook's versions hold, by the commands that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], cluster: Any) -> Any:
    """`ask(command, ...)`: what the command prints as JSON."""

    def run(*arguments: Any) -> Any:
        assert main([*map(str, arguments), "--data", str(cluster.record.data), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_versions_are_listed_compared_and_measured(notebook: Any, ask: Any, cluster: Any, tmp_path: Path) -> None:
    notebook.ok("import torch\nkept = 5\nopen_file = open(__import__('os').devnull)")
    notebook.ok("x = torch.zeros(1 << 20, device='cuda')\nview = x[:10]")
    notebook.ok("%%gpu\nx[3] = 1\nkept = 6")
    session_id = ask("session", "list")[0]["session_id"]
    newest, before, *_older = [int(entry["version"]) for entry in ask("session", "log", session_id)]
    found = {entry["name"]: entry["change"] for entry in ask("session", "diff", session_id, before, newest)}
    assert found["x"] == found["view"] == found["kept"] == "changed"
    listed = ask("state", "ls", session_id)
    assert {entry["name"]: entry["device"] for entry in listed["saved"]}["x"] == "cuda:0"
    assert [(entry["name"], entry["reason"]) for entry in listed["unsaved"]] == [("open_file", "OPEN_FILE")]
    sizes = {entry["name"]: entry for entry in ask("state", "du", session_id)["variables"]}
    assert sizes["x"]["reached_bytes"] > 4 << 20 > sizes["x"]["own_bytes"]
    shown = ask("session", "show", session_id)
    assert (shown["version"], shown["unsaved"], shown["variables"]) == (newest, ["open_file"], len(listed["saved"]))
    assert shown["logical_bytes"] == ask("state", "du", session_id)["total_bytes"]
    assert {worker["host_id"] for worker in shown["workers"]} <= {"h0"}
    assert main(["session", "diff", session_id, "999", "--data", str(cluster.record.data)]) == 3
