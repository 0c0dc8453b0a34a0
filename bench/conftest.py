"""What all benchmarks share: the machine's description, sizes, a cluster, and the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import machine
import table
from alternating import clock_s
from noting_scheduler import PREPARATIONS_FILE

from looseleaf.worker.thread_counts import THREAD_VARIABLES

# The default of a cluster.
KEPT_WARM_S = 300.0
LOAD_BEFORE = machine.load_average()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=clock_s))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    # It is asked for at the end.
    machine_info.update(machine.facts(), load_average_before=LOAD_BEFORE)


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    output_json["machine_info"]["load_average_after"] = machine.load_average()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    entries = [{"extra_info": entry.extra_info} for entry in session.benchmarks] if session is not None else []
    rows = table.rows_of(entries)
    if rows:
        terminalreporter.section("benchmarks: each beside its reference of the same run")
        for line in table.as_text(rows):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def smoke(pytestconfig: pytest.Config) -> bool:
    """Whether everything is only to be seen working, once and in small."""
    return bool(pytestconfig.getoption("benchmark_disable"))


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """This process's children compute with one thread, as workers do that share a machine; both sides of a ratio."""
    with pytest.MonkeyPatch.context() as patch:
        for name in THREAD_VARIABLES:
            patch.setenv(name, "1")
        yield


@pytest.fixture(scope="session")
def storage_cluster(tmp_path_factory: pytest.TempPathFactory, one_thread: None, smoke: bool) -> Iterator[Any]:
    """A one-machine cluster whose arena holds three of the largest states.

    Its scheduler notes each request for a preparation in `PREPARATIONS_FILE` of the data folder. In a smoke run it is
    the only one, and keeps no completed worker, as `test_first_output` wants it.
    """
    from looseleaf.local.cluster import LocalCluster
    from looseleaf.units import GIB

    folder = tmp_path_factory.mktemp("storage")
    scheduler = [sys.executable, str(Path(__file__).parent / "noting_scheduler.py"), str(folder / PREPARATIONS_FILE)]
    with LocalCluster.start(
        data=folder, commands={"scheduler": scheduler}, gpus=1, device="emulated", emulated_delays=False,
        arena_bytes=3 * GIB, log_level="warning",
        keep_warm_s=0.0 if smoke else KEPT_WARM_S,
    ) as running:  # fmt: skip
        yield running
