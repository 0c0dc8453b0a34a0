"""`looseleaf run --resume` when the host of the kernel, with all that ran on it, is gone (design §7: durable)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nbformat.v4 as nbf
import psutil
import pytest

from looseleaf.batch.pool import Pool
from looseleaf.batch.resume import ResumeRecord
from looseleaf.batch.run import Outcome, run_notebook, run_notebook_async
from looseleaf.ids import SessionId
from looseleaf.local.cluster import LocalCluster
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.store_client import StoreClient
from tests.kernel_processes import kernels

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 60.0
POLL_S = 0.02


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two hosts with one virtual GPU each."""
    with LocalCluster.start(
        data=tmp_path / "d", device="emulated", gpus=1, hosts=2, emulated_delays=False
    ) as found:
        yield found


def test_run_goes_on_from_the_failed_cell_on_another_host(two_hosts: LocalCluster, tmp_path: Path) -> None:
    began, holds, times = tmp_path / "began", tmp_path / "holds", tmp_path / "times"
    holds.touch()
    hold = f"while os.path.exists({str(holds)!r}):\n    time.sleep(0.01)"
    sources = (
        f"import os, time, torch\nopen({str(times)!r}, 'a').write('0')\nsteps = ['made']",
        f"%%gpu\nopen({str(times)!r}, 'a').write('1')\nw = torch.full((600_000,), 2.0, device='cuda')\nsteps.append(1)",
        f"%%gpu\nw += 1\nsteps.append('held')\nopen({str(began)!r}, 'w').close()\n{hold}",
        "%%gpu\n(steps, w.sum().item())",
    )

    def notebook() -> nbf.NotebookNode:
        return nbf.new_notebook(cells=[nbf.new_code_cell(text, id=f"c{at}") for at, text in enumerate(sources)])

    async def run_until_its_host_is_gone() -> Outcome:
        record = ResumeRecord.beside(tmp_path / "out.ipynb")
        others = kernels()
        running = asyncio.create_task(
            run_notebook_async(notebook(), str(two_hosts.kernel_socket("h0")), folder=tmp_path, record=record)
        )
        async with asyncio.timeout(LIMIT_S):
            while not began.exists():
                assert not running.done(), running.result()
                await asyncio.sleep(POLL_S)
            await _until_durable(two_hosts, record)
        _kill_host(two_hosts, "h0", kernels() - others)
        return (await running).outcome

    assert asyncio.run(run_until_its_host_is_gone()) is Outcome.SYSTEM_FAILED
    record = ResumeRecord.read(tmp_path / "out.ipynb")
    saved = [done.index for done in record.cells if done.version]
    holds.unlink()
    nb = notebook()
    result = run_notebook(
        nb, Pool(str(two_hosts.kernel_socket("h1")), "emulated", 1), folder=tmp_path, record=record
    )
    assert result.outcome is Outcome.OK, result.failure
    # How many cells were saved depends on their times; the first one always is.
    assert result.first_index == saved[-1] + 1 > 0
    assert nb.cells[3].outputs[0].data["text/plain"] == "(['made', 1, 'held'], 1800000.0)"
    assert times.read_text().count("0") == 1


async def _until_durable(cluster: LocalCluster, record: ResumeRecord) -> None:
    """Returns when the newest version that the run may go on from is on the store's disk."""
    newest = max(done.version for done in record.cells)
    async with open_channel(cluster.address("checkpoint-store"), peer="store") as channel:
        store = StoreClient(channel)
        while True:
            rows = [row for row in await store.list_sessions() if row.session_id == SessionId(record.session_id)]
            if rows and rows[0].durable_version >= newest:
                return
            await asyncio.sleep(POLL_S)


def _kill_host(cluster: LocalCluster, host_id: str, its_kernels: set[psutil.Process]) -> None:
    """SIGKILL for its daemon, its zygotes and workers, and for the run's kernel, which runs there too."""
    daemon = psutil.Process(cluster.pid(f"daemon-{host_id}"))
    assert len(its_kernels) == 1
    for process in (daemon, *daemon.children(recursive=True), *its_kernels):
        process.kill()
