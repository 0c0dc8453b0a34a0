"""The cluster that all golden notebooks share, and the summary of what the comparison found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus import read_entries, survey, survey_lines
from golden_report import REPORT, Report, Result
from golden_run import THREADS_ENV, NotebookRun, run_sides

SUMMARY = Path(__file__).parents[2] / "out" / "golden.json"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A one-machine cluster with one virtual GPU."""
    from looseleaf.local.cluster import LocalCluster

    with pytest.MonkeyPatch.context() as patch:
        # For its workers, which inherit this process's environment.
        for name, value in THREADS_ENV.items():
            patch.setenv(name, value)
        with LocalCluster.start(
            data=tmp_path_factory.mktemp("c"), gpus=1, device="emulated", emulated_delays=False
        ) as running:
            yield running


@pytest.fixture
def run_both(cluster: Any) -> Callable[..., dict[str, NotebookRun]]:
    """`run_sides` through the shared cluster."""

    def run(notebook: Any, **options: Any) -> dict[str, NotebookRun]:
        return run_sides(notebook, str(cluster.kernel_socket()), **options)

    return run


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[Result], None]:
    """Takes one comparison into the summary."""
    return pytestconfig.stash.setdefault(REPORT, Report()).add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts and differences, also written to out/golden.json."""
    found = config.stash.get(REPORT, None)
    if found is not None and found.results:
        terminalreporter.section("golden comparison")
        for line in [*found.lines(), *survey_lines(read_entries())]:
            terminalreporter.write_line(line)
        found.write(SUMMARY, survey())
