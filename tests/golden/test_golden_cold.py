"""The same where no worker stays: every GPU cell has one of its own, and finds only what was saved.

In a worker that stays, what the save left out is still there. `LOOSELEAF_KEEP_WARM_S=0 pytest tests/golden -k NAME`
does the same for any notebook.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_compare import compare
from golden_report import Result
from golden_run import THREADS_ENV, run_sides
from percent import read_percent

NOTEBOOKS = Path(__file__).parent / "notebooks"

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def cold_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A one-machine cluster whose workers end with their cell."""
    from looseleaf.local.cluster import LocalCluster

    for name, value in THREADS_ENV.items():
        monkeypatch.setenv(name, value)
    with LocalCluster.start(
        data=tmp_path / "c", gpus=1, device="emulated", emulated_delays=False, keep_warm_s=0.0
    ) as running:
        yield running


def test_golden_notebook_is_the_same_with_a_worker_for_each_cell(cold_cluster: Any) -> None:
    source = read_percent(NOTEBOOKS / "functional_loops.py")
    sides = run_sides(source.notebook, str(cold_cluster.kernel_socket()), plain=False)
    assert {side: run.failure for side, run in sides.items() if run.failure} == {}
    result = Result("cold", "functional_loops", "reference", compare(sides["reference"], sides["here"]), "")
    assert not result.problems(), "\n" + "\n".join(result.problems())
