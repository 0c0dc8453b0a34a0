"""The cluster that the golden notebooks of a test process share, and the summary of what all have found."""

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
from golden_total import shortfalls

SUMMARY = Path(__file__).parents[2] / "out" / "golden.json"
# Of what one test process of several tells the first.
HANDED_ON = "golden_results"


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


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """One of several test processes hands its comparisons on; where all are known, too few of them are a failure."""
    found = session.config.stash.get(REPORT, None)
    if found is None:
        return
    handed_on = getattr(session.config, "workeroutput", None)
    if handed_on is not None:
        handed_on[HANDED_ON] = found.pack()
    elif exitstatus == pytest.ExitCode.OK and shortfalls(found):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a test process has compared; nothing of one that crashed."""
    packed = getattr(node, "workeroutput", {}).get(HANDED_ON)
    if packed is not None:
        node.config.stash.setdefault(REPORT, Report()).unpack(packed)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts and differences, also written to out/golden.json."""
    found = config.stash.get(REPORT, None)
    if found is not None and found.results:
        terminalreporter.section("golden comparison")
        lines = [*found.lines(), *survey_lines(read_entries()), *(f"NOT ENOUGH: {why}" for why in shortfalls(found))]
        for line in lines:
            terminalreporter.write_line(line)
        found.write(SUMMARY, survey())
