"""A host that is started by demand and never comes up, on real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Notebook, running_cluster
from tests.faults.held_cell import HeldCell, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

# Longer than a boot that goes well takes on a loaded machine.
BOOT_TIMEOUT_S = 30
SETTINGS = {
    "BOOT_TIMEOUT_S": str(BOOT_TIMEOUT_S), "HEADROOM_HOSTS": "0", "DEMAND_PEAK_S": "1", "POWER_OFF_AFTER_S": "1",
    "PROVISION_WAIT_S": "0",
}  # fmt: skip


def test_host_that_never_boots_is_ended_asked_for_again_and_goes_with_the_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"LOOSELEAF_SCHEDULER_{name}", value)
    monkeypatch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", '["torch"]')
    (tmp_path / "flags.json").write_text("{}")
    never = tmp_path / "hold-h1-boot"
    never.touch()
    program = [sys.executable, str(Path(__file__).with_name("faulty_service.py")), str(tmp_path), "worker_daemon"]
    with running_cluster(tmp_path, hosts=1, hosts_max=2, gpus=1, commands={"daemon": program}) as cluster:
        notebooks = [Notebook(cluster.kernel_socket("h0"), tmp_path) for _ in range(2)]
        try:
            cells = [HeldCell(tmp_path, f"cell{number}") for number in range(2)]
            messages = [notebooks[0].start(cells[0].code)]
            cells[0].until_started()
            messages.append(notebooks[1].start(cells[1].code))
            until(lambda: cluster.pid("daemon-h1"), "no host was started for the cell that waits")
            late = cluster.pid("daemon-h1")
            until(lambda: cluster.pid("daemon-h1") not in (0, late), "it was not ended, and asked for again")
            never.unlink()
            cells[1].until_started()
            for notebook, cell, message in zip(notebooks, cells, messages, strict=True):
                cell.end()
                assert notebook.finish(message).status == "ok" and cell.starts == 1
            until(lambda: cluster.pid("daemon-h1") == 0, "the surplus was not ended")
            assert notebooks[1].ok("%%gpu\n1 + 1").value == "2"
        finally:
            for notebook in notebooks:
                notebook.close()
