"""What a cell may take of its host, over a whole cluster."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster
from looseleaf.units import MIB

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_BYTES = 600 * MIB


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOSELEAF_DAEMON_WORKER_MEMORY_BYTES", str(LIMIT_BYTES))
        patch.setenv("MY_API_KEY", "hidden")
        data = tmp_path_factory.mktemp("cluster") / "d"
        with LocalCluster.start(data=data, device="emulated", emulated_delays=False, gpus=1) as found:
            yield found


def test_cell_that_takes_too_much_memory_is_told_limit_and_peak_and_the_next_one_runs(new_notebook: Any) -> None:
    notebook = new_notebook()
    first = "%%gpu\nimport os, torch\nkept = torch.ones(10, device='cuda')\n(os.environ['MY_API_KEY'], os.getcwd())"
    # Read back, not compared as text: a long folder's name takes a line of its own.
    shown = ast.literal_eval(notebook.ok(first).value)
    assert shown == ("hidden", ast.literal_eval(notebook.ok("import os\nos.getcwd()").value))
    greedy = notebook.run("%%gpu\nhoard = []\nwhile True: hoard.append(b'x' * (16 << 20))")
    assert greedy.ename == "WORKER_LOST"
    assert "(limit 600.0 MiB, it had used up to" in greedy.error, greedy.error
    assert notebook.ok("%%gpu\nkept.sum().item()").value == "10.0"
