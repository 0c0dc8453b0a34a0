"""GPU cells of batch runs on a real cluster: they keep their worker, and keep nobody else waiting for it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from batch_fixtures import notebook_of, write_notebook_of

from looseleaf.batch.files import read_notebook
from looseleaf.batch.pool import Pool
from looseleaf.batch.resume import ResumeRecord
from looseleaf.batch.run import Outcome, run_notebook
from looseleaf.cli.main import main
from looseleaf.local.cluster import LocalCluster, wait_for
from looseleaf.local.probe import get_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a busy machine threads of one cell would only wait for each other."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def pool_of(cluster: LocalCluster) -> Pool:
    return Pool(str(cluster.kernel_socket()), "emulated", 1, embedded=True)


@pytest.mark.slow
def test_gpu_cells_that_follow_at_once_keep_their_worker(cluster: LocalCluster, tmp_path: Path) -> None:
    nb = notebook_of(
        "import torch", "x = torch.ones(300_000, device='cuda')", "x += 1", "y = 5", "x.mul_(y).sum().item()"
    )
    result = run_notebook(nb, pool_of(cluster), folder=tmp_path)
    assert result.outcome is Outcome.OK, result.failure
    gpu = [record for record in result.records if record.label == "gpu"]
    # A worker that has time between two cells is prepared for the next one: it is the same worker all the same.
    assert len(gpu) == 3 and {record.path for record in gpu[1:]} <= {"warm", "prepared"}, [r.path for r in gpu]
    assert len({record.worker for record in gpu}) == 1
    # The payload lay on the device between the cells: it was neither moved there nor made again.
    assert all(record.gpu_resident_s > 0 for record in gpu[1:])
    assert nb.cells[4].outputs[0]["data"]["text/plain"] == "3000000.0"


def wait_in_queue(cluster: LocalCluster, count: int) -> None:
    """Returns when that many runs wait for a GPU."""

    def waiting() -> bool:
        return bool(asyncio.run(get_pool(cluster.address("scheduler"))).queued_runs == count)

    assert wait_for(waiting, WAIT_S), f"there are not {count} runs in the queue"


def noting(name: str, log: Path, then: str = "") -> str:
    """A GPU cell that writes its name down, then does `then`."""
    return f"%%gpu\nwith open({str(log)!r}, 'a') as file:\n    file.write({name!r} + ' ')\n{then}"


@pytest.mark.slow
def test_person_who_waits_gets_the_gpu_before_the_next_cell_of_a_batch_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    batch = notebook_of(noting("b0", log, wait), noting("b1", log), noting("b2", log))
    person = notebook_of(noting("person", log))
    results: dict[str, Any] = {}

    def run(name: str, nb: Any) -> threading.Thread:
        def work() -> None:
            results[name] = run_notebook(nb, pool_of(cluster), folder=tmp_path, priority=name)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    threads = [run("batch", batch)]
    assert wait_for(log.exists, WAIT_S)
    threads.append(run("interactive", person))
    try:
        wait_in_queue(cluster, 1)
    finally:
        go.touch()
        for thread in threads:
            thread.join()
    assert [result.outcome for result in results.values()] == [Outcome.OK, Outcome.OK]
    # The batch run's worker was ended for the person's cell, and nothing of its state was lost with it.
    assert log.read_text().split() == ["b0", "person", "b1", "b2"]
    workers = [record.worker for record in results["batch"].records]
    assert workers[0] != workers[1] == workers[2]


@pytest.mark.slow
def test_batch_runs_share_a_gpu_and_none_is_kept_waiting(cluster: LocalCluster, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    later = [noting(f"a{number}", log) for number in (1, 2, 3)]
    write_notebook_of(tmp_path / "a.ipynb", noting("a0", log, wait), *later)
    write_notebook_of(tmp_path / "b.ipynb", noting("b0", log, wait))
    running = subprocess.Popen(
        [sys.executable, "-m", "looseleaf.cli.main", "run", "a.ipynb", "b.ipynb", "-o", "out", "-j", "2",
         "--endpoint", str(cluster.kernel_socket())], cwd=tmp_path, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        # Whichever came first has the GPU; the other one waits.
        wait_in_queue(cluster, 1)
    finally:
        go.touch()
        code = running.wait(WAIT_S)
    order = log.read_text().split()
    assert code == 0 and sorted(order) == ["a0", "a1", "a2", "a3", "b0"]
    # At most one cell of the other notebook comes before the one that waited.
    assert order.index("b0") <= 1


@pytest.mark.slow
def test_interrupt_reaches_the_gpu_cell_and_what_it_showed_is_written(cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    endless = "import time\nprint('on the GPU', flush=True)\nwhile True: time.sleep(0.01)"
    write_notebook_of(tmp_path / "in.ipynb", noting("g0", log, endless), "'never'")
    running = subprocess.Popen(
        [sys.executable, "-m", "looseleaf.cli.main", "run", "in.ipynb", "-o", "out.ipynb",
         "--endpoint", str(cluster.kernel_socket())], cwd=tmp_path, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        assert wait_for(log.exists, WAIT_S)
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(WAIT_S)
    outputs = read_notebook(tmp_path / "out.ipynb").cells[0].outputs
    assert code == 130 and [output.get("text") or output.ename for output in outputs][-1] == "KeyboardInterrupt"


@pytest.mark.slow
def test_run_with_a_running_cluster_of_several_hosts_uses_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["import torch", "torch.ones(3, device='cuda').sum().item()"]
    sources = [write_notebook_of(tmp_path / f"n{number}.ipynb", *cells) for number in range(2)]
    with LocalCluster.start(data=tmp_path / "d", gpus=1, hosts=2, device="emulated", emulated_delays=False) as running:
        monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(running.run_dir))
        report = tmp_path / "r.json"
        arguments = [*map(str, sources), "-o", str(tmp_path / "out"), "-j", "2", "--report", str(report)]
        assert main(["run", *arguments]) == 0, capsys.readouterr().err
    found = json.loads(report.read_text())
    assert found["machine"]["hosts"] == 2 and found["machine"]["delays"] is False
    assert {cell["host"] for cell in found["cells"] if cell["label"] == "gpu"} <= {"h0", "h1"}
    assert found["totals"]["gpu_cells"] == 2 and not found["machine"]["embedded"]
    assert "virtual GPUs without the times of a real attach" in capsys.readouterr().out


@pytest.mark.slow
def test_run_that_failed_goes_on_with_its_tensors_when_the_cell_was_mended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cells = [
        "import torch\nstarts = [0]\nw = torch.arange(3000.0)", "w = w.cuda()\nw += 1", "raise ValueError(w.sum())",
    ]  # fmt: skip
    pool = Pool(str(cluster.kernel_socket()), "emulated", 1)
    record = ResumeRecord.beside(tmp_path / "out.ipynb")
    failed = run_notebook(notebook_of(*cells, "(starts, w.sum().item())"), pool, folder=tmp_path, record=record)
    assert failed.outcome is Outcome.CELL_FAILED and failed.failed_cell == "c2"
    # How many cells were saved depends on their times; the first one always is.
    record = ResumeRecord.read(tmp_path / "out.ipynb")
    saved = [done.index for done in record.cells if done.version]
    assert saved[0] == 0
    nb = notebook_of(*cells[:2], "starts.append(w.device.type)", "(starts, w.sum().item())")
    result = run_notebook(nb, pool, folder=tmp_path, record=record)
    assert result.outcome is Outcome.OK, result.failure
    assert result.first_index == saved[-1] + 1
    assert nb.cells[3].outputs[0]["data"]["text/plain"] == f"([0, 'cuda'], {float(sum(range(1, 3001)))})"
