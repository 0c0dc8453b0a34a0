"""Which cluster a batch run takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from looseleaf.batch.pool import Pool, open_pool
from looseleaf.local.record import ClusterRecord, process_started_s, write_record


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterRecord:
    """A cluster that counts as running, because its supervisor is this process."""
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path))
    mine = os.getpid()
    record = ClusterRecord(
        cluster_id="c-1", supervisor_pid=mine, supervisor_started_s=process_started_s(mine), state="ready",
        data=str(tmp_path), run_dir=str(tmp_path), device="emulated", gpus_per_host=2, hosts=["h0", "h1"],
        kernel_sockets={"h0": "h0.sock", "h1": "h1.sock"}, started_unix_ms=1,
    )  # fmt: skip
    write_record(tmp_path, record)
    return record


def test_named_endpoint_is_taken_as_it_is(running: ClusterRecord) -> None:
    with open_pool("unix:/a/d.sock", 8, "cuda", delays=False) as pool:
        assert pool == Pool("/a/d.sock")


@pytest.mark.parametrize(("gpus", "device"), [(None, None), (2, None), (None, "auto"), (2, "emulated")])
def test_running_cluster_that_has_what_is_asked_for_is_taken(
    running: ClusterRecord, gpus: int | None, device: str | None
) -> None:
    with open_pool("", gpus, device) as pool:
        assert pool == Pool("h0.sock", "emulated", 2, embedded=False, more_endpoints=("h1.sock",), delays=True)


def test_hosts_that_stand_by_get_no_notebook(running: ClusterRecord, tmp_path: Path) -> None:
    running.kernel_sockets["h2"] = "h2.sock"
    write_record(tmp_path, running)
    with open_pool("", None, None) as pool:
        assert {pool.endpoint_of(index) for index in range(6)} == {"h0.sock", "h1.sock"}


@pytest.mark.parametrize(
    ("wishes", "settings"),
    [
        ({"gpus": 1, "device": None}, {"gpus": 1, "device": None}),
        ({"gpus": None, "device": "none"}, {"gpus": None, "device": "none"}),
        ({"gpus": None, "device": None, "delays": False}, {"gpus": None, "device": None, "emulated_delays": False}),
    ],
)
def test_running_cluster_that_has_something_else_is_left_alone(
    running: ClusterRecord, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, Any], settings: dict[str, Any]
) -> None:
    class Started(Exception):
        """Instead of a cluster."""

    def start(**given: Any) -> None:
        folder = given.pop("data")
        assert folder.is_dir() and given == settings
        raise Started(folder)

    monkeypatch.setattr("looseleaf.local.cluster.LocalCluster.start", start)
    with pytest.raises(Started) as caught, open_pool("", **wishes):
        pass
    # A start that fails leaves no folder.
    assert not caught.value.args[0].exists()
