"""A session's cells on more than one host: its state follows it, and survives the loss of one (design §7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

DURABLE_LIMIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts with one virtual GPU each."""
    with LocalCluster.start(
        data=tmp_path_factory.mktemp("hosts") / "d", device="emulated", gpus=1, hosts=2, emulated_delays=False
    ) as found:
        yield found


def test_cell_runs_on_the_other_host_when_its_own_gpu_is_busy(
    cluster: LocalCluster, new_notebook: Callable[..., Any], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    one, two = (new_notebook() for _ in range(2))
    for notebook in (one, two):
        notebook.ok("import torch\nbig = torch.arange(3_000_000, dtype=torch.float32)")
    hold = f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)"
    message = one.start(f"%%gpu\nimport os, time\nheld = torch.ones(5).cuda()\nprint('running', flush=True)\n{hold}")
    other: list[Any] = []

    def start_other(outcome: Any) -> None:
        if "running" in outcome.text and not other:
            other.append(two.ok("moved = big.cuda() + 1\nmoved.sum().item()"))
            gate.touch()

    first = one.finish(message, on_output=start_other)
    assert first.status == "ok" and {first.report["host"], other[0].report["host"]} == {"h0", "h1"}
    assert float(other[0].value) == pytest.approx(3_000_000 * 3_000_001 / 2, rel=1e-3)
    # Back in the kernel on h0: what was saved on h1 is fetched from there.
    last = two.ok("%%gpu\n(moved - big.cuda()).mean().item()")
    assert last.value == "1.0"
    assert "no answer" not in two.ok("%looseleaf release").text
    assert not any(psutil.pid_exists(outcome.report["worker"]) for outcome in (other[0], last))


def test_lost_host_costs_its_session_nothing_that_was_durable(
    cluster: LocalCluster, new_notebook: Callable[..., Any]
) -> None:
    notebook = new_notebook()
    notebook.ok("import torch\nsteps = []")
    done = notebook.ok("%%gpu\nweights = torch.full((400_000,), 2.0, device='cuda')\nsteps.append('made')")
    _wait_durable(cluster, done.report["version"])
    host = f"daemon-{done.report['host']}"
    pid = cluster.pid(host)
    cluster.kill(host)
    cluster.wait_serving(host, other_than=pid)
    assert notebook.ok("%%gpu\nsteps.append('used')\nweights.sum().item()").value == "800000.0"
    assert notebook.ok("steps").value == "['made', 'used']"


def _wait_durable(cluster: LocalCluster, version: int) -> None:
    """Until the newest session's version is on the store's disk."""
    import asyncio

    from looseleaf.rpc.client import open_channel
    from looseleaf.rpc.store_client import StoreClient

    async def durable_version() -> int:
        async with open_channel(cluster.address("checkpoint-store"), peer="store") as channel:
            return int((await StoreClient(channel).list_sessions())[0].durable_version)

    deadline_s = time.monotonic() + DURABLE_LIMIT_S
    while asyncio.run(durable_version()) < version:
        assert time.monotonic() < deadline_s, f"version {version} did not become durable in {DURABLE_LIMIT_S} s"
