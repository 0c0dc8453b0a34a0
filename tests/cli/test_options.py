from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from looseleaf.cli.options import print_table, resolve_address
from looseleaf.cli.status import render
from looseleaf.errors import NotFound


@pytest.mark.parametrize("name", ["a[1].ipynb", "[/bold] b", "[red]c"])
def test_brackets_in_names_are_shown_and_are_no_markup(capsys: Any, name: str) -> None:
    from rich.console import Console

    print_table(f"versions of {name}", ["title"], [[name]], "none")
    assert capsys.readouterr().out.count(name) == 2
    service = {"state": "serving", "pid": 1, "restarts": 0, "address": f"unix:/{name}/s.sock"}
    found = {
        "cluster_id": "c-1", "state": "ready", "age_s": 1.0, "data": f"/{name}", "services": {"scheduler": service},
        "pool": None, "pool_problem": name,
    }
    console = Console(width=200)
    with console.capture() as shown:
        console.print(render(found))
    assert shown.get().count(name) == 3


def test_service_name_stands_for_the_running_cluster_else_for_what_the_hosts_daemon_dials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path))
    with pytest.raises(NotFound, match="CLUSTER_NOT_RUNNING"):
        resolve_address("scheduler", None)
    monkeypatch.setenv("LOOSELEAF_DAEMON_SCHEDULER", "scheduler:7402")
    assert resolve_address("scheduler", None) == "scheduler:7402"
    # A folder that was named is meant.
    with pytest.raises(NotFound, match="CLUSTER_NOT_RUNNING"):
        resolve_address("scheduler", tmp_path)
    with pytest.raises(NotFound, match="CLUSTER_NOT_RUNNING"):
        resolve_address("checkpoint-store", None)
