"""The thin, real path: a cell borrows a GPU, its state moves, the GPU goes back (design §1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from looseleaf.cli.top import top
from looseleaf.local.cluster import LocalCluster
from looseleaf.local.probe import get_pool
from looseleaf.v1 import scheduler_pb2

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NewNotebook = Callable[..., Any]
SERVICES = ("store", "scheduler", "frontend", "daemon")
CELL_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def metrics_ports() -> dict[str, int]:
    """A free port for each service, below those that the system gives to clients by itself.

    They are bound only later: two runs on one machine look from different places.
    """
    found: list[int] = []
    start = 21_000 + os.getpid() * 16 % 10_000
    for port in range(start, 32_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == len(SERVICES):
            break
    return dict(zip(SERVICES, found, strict=True))


@pytest.fixture(scope="module")
def cluster_env(metrics_ports: dict[str, int]) -> dict[str, str]:
    ports = {f"LOOSELEAF_{name.upper()}_METRICS_PORT": str(port) for name, port in metrics_ports.items()}
    # As far as preparations can go; the clusters of other modules go as far as the default.
    far = {"LOOSELEAF_SCHEDULER_PREPARE_UP_TO": "device_ready", "LOOSELEAF_SCHEDULER_SPECULATION_EXPIRY_S": "600"}
    return {**ports, **far}


def figures(ports: dict[str, int]) -> dict[str, float]:
    """Every sample of all services by its name, labels added up."""
    found: dict[str, float] = {}
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_gpu_cell_runs_on_worker_and_kernel_sees_its_results(shared: Any) -> None:
    shared.ok("import torch, os\nscale = 3.0\ndef double(t):\n    return t * 2 * scale")
    outcome = shared.ok(
        "x = torch.ones(4, device='cuda')\ny = double(x)\nworker_pid = os.getpid()\nprint(y.device, y.sum().item())"
    )
    assert outcome.text == "cuda:0 24.0\n"
    assert outcome.report["label"] == "gpu" and outcome.report["error"] is None
    assert outcome.report["worker"] != shared.pid
    assert shared.ok("worker_pid").value == str(outcome.report["worker"])
    assert shared.ok("print('cpu', scale)").report["label"] == "cpu"


def test_outputs_of_all_kinds_arrive_in_order(shared: Any) -> None:
    shared.ok("import sys, torch\nfrom IPython.display import display")
    outcome = shared.ok(
        "%%gpu\nprint('one')\ndisplay('two')\nprint('three', file=sys.stderr)\nx = torch.ones(2).cuda()\nx.sum().item()"
    )
    assert outcome.kinds == ["execute_input", "stream", "display_data", "stream", "execute_result"]
    assert outcome.value == "2.0"


def test_error_of_gpu_cell_has_the_right_line_and_keeps_state(shared: Any) -> None:
    shared.ok("import torch")
    outcome = shared.run("a = torch.ones(2, device='cuda')\nb = 1\nraise ValueError('mine')")
    assert outcome.status == "error" and outcome.ename == "ValueError"
    assert "line 3" in outcome.traceback
    assert shared.ok("b").value == "1"


def test_execution_counts_go_on_over_both_kinds_of_cells(shared: Any) -> None:
    shared.ok("import torch")
    ask = "get_ipython().execution_count"
    first, *more = [int(shared.ok(code).value) for code in (ask, f"%%gpu\n{ask}", ask)]
    assert more == [first + 1, first + 2]


def test_input_is_asked_of_the_person(shared: Any) -> None:
    shared.ok("import torch")
    outcome = shared.finish(shared.start("%%gpu\nname = input('who? ')\nprint('hello', name)"), answer="Ada")
    assert outcome.status == "ok" and "hello Ada" in outcome.text


def test_interrupt_ends_the_cell_and_the_session_lives_on(shared: Any) -> None:
    shared.ok("import torch\nkept = 5")
    message = shared.start("%%gpu\nprint('started', flush=True)\nwhile True:\n    pass")
    sent: list[bool] = []

    def interrupt_once(outcome: Any) -> None:
        if "started" in outcome.text and not sent:
            sent.append(True)
            shared.manager.interrupt_kernel()

    outcome = shared.finish(message, on_output=interrupt_once)
    assert outcome.ename == "KeyboardInterrupt"
    assert shared.ok("%%gpu\nkept + 1").value == "6"


def test_prepared_cell_starts_on_a_prepared_worker(notebook: Any) -> None:
    notebook.ok("import torch\nweights = torch.ones(300_000)")
    code = "total = (weights.cuda() * 2).sum().item()\ntotal"
    prepared = notebook.prepare(code)
    assert prepared["status"] == "ok" and prepared["worker_id"], prepared
    outcome = notebook.ok(code)
    assert outcome.report["path"] == "prepared", outcome.report
    assert outcome.report["worker_id"] == prepared["worker_id"]
    assert outcome.value == "600000.0"


@pytest.mark.slow
def test_data_lie_on_the_gpu_before_run_until_another_notebooks_run_needs_it(
    cluster: LocalCluster, shared: Any, notebook: Any
) -> None:
    def prepared_on_device(notebook: Any, text: str) -> Any:
        deadline_s = time.monotonic() + CELL_LIMIT_S
        # A cell's reply comes before the scheduler has heard that its GPU is free.
        while any(host.leases for host in pool_now().hosts):
            assert time.monotonic() < deadline_s
        worker_id = notebook.prepare(text)["worker_id"]
        pool = pool_now()
        [worker] = [each for host in pool.hosts for each in host.workers if each.worker_id == worker_id]
        assert (worker.stage, list(worker.gpu_indices)) == (scheduler_pb2.WORKER_STAGE_DEVICE_READY, [0]), worker
        return worker

    def pool_now() -> Any:
        return asyncio.run(get_pool(cluster.address("scheduler")))

    one, two = shared, notebook
    for each in (one, two):
        each.ok("import torch")
        each.ok("held = torch.full((300_000,), 2.0, device='cuda')")
    for each in (one, two):
        each.ok("%looseleaf release")
    code = "(held + 1).sum().item()"
    ready = prepared_on_device(one, code)
    outcome = one.ok(code)
    assert (outcome.value, outcome.report["path"], outcome.report["worker"]) == ("900000.0", "prepared", ready.pid)
    # The first one's worker has done its work and makes way for an edit, which in turn makes way for any Run.
    given_up = prepared_on_device(two, code)
    assert one.ok("(held - 1).sum().item()").value == "300000.0"
    assert not psutil.pid_exists(given_up.pid)
    assert two.ok(code).value == "900000.0"
    spent = pool_now().speculation
    assert spent.on_device >= 2 and spent.on_device > spent.on_device_used >= 1


def test_prepare_changes_nothing_a_person_can_see(shared: Any) -> None:
    shared.ok("import torch\nseen = []\nstart = torch.ones(3)")
    shared.prepare("seen.append(1)\nother = start.cuda()\nprint('never')")
    assert shared.ok("seen, 'other' in globals()").value == "([], False)"


def test_second_gpu_cell_finds_the_session_worker_warm(shared: Any) -> None:
    shared.ok("import torch")
    first = shared.ok("state = torch.zeros(10, device='cuda')")
    second = shared.ok("state += 1\nstate.sum().item()")
    assert second.report["path"] != "cold" and second.report["worker"] == first.report["worker"]
    assert second.value == "10.0"


def test_objects_changed_on_both_sides_are_never_two_copies(shared: Any) -> None:
    shared.ok("import torch\nlog = []\nbox = {'log': log}\nalias = log")
    shared.ok("%%gpu\nlog.append('gpu')\nx = torch.ones(1).cuda()")
    shared.ok("alias.append('cpu')")
    shared.ok("%%gpu\nbox['log'].append('gpu again')")
    assert shared.ok("log, alias is log, box['log'] is log").value == "(['gpu', 'cpu', 'gpu again'], True, True)"


def test_function_sees_later_rebinding_of_its_globals(shared: Any) -> None:
    shared.ok("import torch\nk = 1\ndef f(x):\n    return x.cuda().sum().item() * k")
    assert shared.ok("f(torch.ones(2))").value == "2.0"
    shared.ok("k = 10")
    assert shared.ok("f(torch.ones(2))").value == "20.0"


def test_deleted_name_stays_deleted(shared: Any) -> None:
    shared.ok("import torch\ngone = torch.ones(3)\nstay = 1")
    shared.ok("%%gpu\ndel gone\nx = torch.ones(1).cuda()")
    assert shared.run("gone").ename == "NameError"
    assert shared.ok("stay").value == "1"


def test_random_numbers_go_on_as_in_one_process(shared: Any) -> None:
    import random

    import numpy as np
    import torch

    shared.ok("import torch, random, numpy as np\ntorch.manual_seed(5); random.seed(6); np.random.seed(7)")
    code = "(torch.rand(1).item(), random.random(), float(np.random.rand()))"
    drawn = [shared.ok(prefix + code).value for prefix in ("", "%%gpu\n", "", "%%gpu\n")]
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    assert drawn == [repr((torch.rand(1).item(), random.random(), float(np.random.rand()))) for _ in range(4)]


def test_plots_and_tables_of_gpu_cells_are_shown(shared: Any) -> None:
    shared.ok("import torch, matplotlib.pyplot as plt\n%matplotlib inline")
    outcome = shared.ok("x = torch.arange(4.0).cuda()\nplt.plot(x.cpu())\nplt.show()")
    assert outcome.images == 1
    outcome = shared.ok("plt.figure(); plt.plot([1, 2]); plt.show()")
    assert outcome.images == 1


def test_device_questions_are_answered_in_the_kernel(shared: Any) -> None:
    shared.ok("import torch")
    outcome = shared.ok("(torch.cuda.is_available(), torch.cuda.device_count(), torch.device('cuda').type)")
    assert outcome.value == "(True, 1, 'cuda')" and outcome.report["label"] == "cpu"


@pytest.mark.slow
def test_cell_computes_with_as_many_threads_as_the_kernel(notebook: Any) -> None:
    notebook.ok("import torch\ntorch.set_num_threads(1)")
    assert notebook.ok("%%gpu\ntorch.get_num_threads()").value == "1"
    notebook.ok("torch.set_num_threads(3)")
    assert notebook.ok("%%gpu\ntorch.get_num_threads()").value == "3"


def test_metrics_of_every_service_move_as_a_cell_runs(shared: Any, metrics_ports: dict[str, int]) -> None:
    shared.ok("import torch\ngrid = torch.ones(1000)")
    before = figures(metrics_ports)
    limit_s = time.monotonic() + CELL_LIMIT_S
    code = "heat = (grid.cuda() * 2).sum().item()"
    # Refused while another cell's worker is on its way to be free.
    while not shared.prepare(code)["worker_id"]:
        assert time.monotonic() < limit_s
    shared.ok(code)
    expected = {
        "looseleaf_start_latency_seconds_count", "looseleaf_prepare_seconds_count", "looseleaf_restore_bytes_count",
        "looseleaf_save_seconds_count", "looseleaf_save_dirty_bytes_sum", "looseleaf_gpu_leased_seconds_total",
        "looseleaf_gpu_busy_seconds_total", "looseleaf_prefetch_total", "looseleaf_edit_signal_seconds_count",
        "looseleaf_scheduler_leases_handed_out_total", "looseleaf_rpc_requests_total",
    }
    after: dict[str, float] = {}
    # What the scheduler hears of a cell comes after the cell's end.
    while not expected <= {name for name, value in after.items() if value > before.get(name, 0.0)}:
        assert time.monotonic() < limit_s, expected - after.keys()
        after = figures(metrics_ports)
    assert after["looseleaf_import_cache_nodes"] >= 1 and after["looseleaf_store_bytes"] > 0
    assert after["looseleaf_queue_depth"] == 0 and after["looseleaf_scheduler_gpus"] == 1


def test_logs_have_the_ids_of_a_cell_in_every_service_and_no_word_of_it(cluster: LocalCluster, shared: Any) -> None:
    word = "ll_marker_7f3a"
    shared.ok(f"import torch\n{word}_cpu = '{word}'")
    gpu = f"{word}_gpu = torch.ones(2).cuda()  # {word}\nprint({word}_cpu)"
    shared.prepare(gpu)
    shared.ok(gpu)
    failed = shared.run(f"%%gpu\nraise ValueError('{word}')")
    assert failed.ename == "ValueError"
    folders = {Path(cluster.record.data), cluster.run_dir}
    # The index has a log of its own kind, which is state.
    logs = {path for folder in folders for path in folder.rglob("logs/*") if path.is_file()}
    assert {"scheduler.log", "frontend.log", "checkpoint-store.log", "daemon-h0.log"} <= {path.name for path in logs}
    assert [str(path) for path in logs if word in path.read_text(errors="replace")] == []
    limit_s = time.monotonic() + CELL_LIMIT_S
    told = {name: next(path for path in logs if path.name == f"{name}.log") for name in ("scheduler", "daemon-h0")}
    while not set.intersection(*(executions_in(path) for path in told.values())):
        assert time.monotonic() < limit_s, told


def executions_in(log: Path) -> set[str]:
    """Executions of whose events the log has their session and host too."""
    whole = log.read_text(errors="replace").rpartition("\n")[0]
    events = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return {event["execution"] for event in events if {"execution", "session", "host"} <= event.keys()}


@pytest.mark.slow
def test_top_shows_hosts_sessions_store_and_the_cell_that_ended(
    cluster: LocalCluster, shared: Any, capsys: Any
) -> None:
    shared.ok("import torch\nshown = torch.ones(2).cuda()")
    limit_s, shown = time.monotonic() + CELL_LIMIT_S, ""
    data = Path(cluster.record.data)

    def look(**how: bool) -> str:
        with contextlib.suppress(typer.Exit):
            top(data, **how)
        assert time.monotonic() < limit_s, shown
        return str(capsys.readouterr().out)

    def ended_saved(found: Any) -> bool:
        # The scheduler hears of the cell's end after the notebook; a busy service may answer too late for one look.
        ended = found["pool"]["ended"] if found["problems"] == [] else []
        return any(run["state"] == "EXECUTION_STATE_SAVED" for run in ended)

    shown = look(as_json=True)
    while not ended_saved(found := json.loads(shown)):
        shown = look(as_json=True)
    assert found["hosts"]["h0"]["zygote_pids"]
    assert int(found["store"]["used_bytes"]) > 0 and len(found["sessions"]) >= 1
    while not all(word in shown for word in ("1 of 1 host(s) alive", "saved", "torch")):
        shown = look(once=True)
