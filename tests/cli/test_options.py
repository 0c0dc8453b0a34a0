from __future__ import annotations

from typing import Any

import pytest

from looseleaf.cli.options import print_table
from looseleaf.cli.status import render


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
