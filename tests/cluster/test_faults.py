"""Bad input and faults: the cell gets a clear error, the session lives on, nothing is lost silently."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from memory_group import memory_group

from looseleaf.local.cluster import LocalCluster, wait_for
from looseleaf.rpc.client import open_channel
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(own_cluster: LocalCluster) -> LocalCluster:
    """Nobody else's: parts of it are killed."""
    return own_cluster

NewNotebook = Callable[..., Any]


@pytest.mark.parametrize("code", ["", "\n\n", "# only a comment", "%%gpu\n", "%pwd", "%%time\npass"])
def test_empty_and_magic_only_cells_run(shared: Any, code: str) -> None:
    assert shared.run(code).status == "ok"


@pytest.mark.parametrize("code", ["def f(:\n  pass", "%%gpu\nx = = 1", "x.cuda(", "print('a"])
def test_syntax_errors_are_shown_as_such(shared: Any, code: str) -> None:
    outcome = shared.run(code)
    assert outcome.ename in ("SyntaxError", "IncompleteInputError"), outcome
    assert shared.ok("1 + 1").value == "2"


# Ways for a worker to end by itself, and what a person is told of each. That the system kills it for lack of memory is
# a test of its own, in all phases.
ENDS = (
    ("os.kill(os.getpid(), 9)", "SIGKILL"),
    ("os._exit(3)", "exited with code 3"),
    ("ctypes.string_at(0)", "SIGSEGV"),
)
# Of the phases beside the cell itself the gate tries one: what is told of a worker's end does not depend on the phase.
ENDS_IN_OTHER_PHASES = (ENDS[0], *(pytest.param(*end, marks=pytest.mark.soak) for end in ENDS[1:]))


@pytest.mark.parametrize(("how", "said"), ENDS)
def test_worker_death_is_the_cells_error_and_the_parent_version_stays(shared: Any, how: str, said: str) -> None:
    shared.ok("import torch, os, ctypes\nkept = [1]")
    before = shared.ok("%%gpu\nkept.append(2)\nw = torch.ones(2).cuda()").report["version"]
    outcome = shared.run(f"%%gpu\nkept.append(3)\n{how}")
    assert outcome.ename == "WORKER_LOST", outcome
    assert said in outcome.error and f"version {before}" in outcome.error
    assert shared.ok("kept").value == "[1, 2]"
    again = shared.ok("%%gpu\nkept.append(4)\nw.sum().item()")
    assert again.value == "2.0" and again.report["path"] == "cold"
    assert shared.ok("kept").value == "[1, 2, 4]"


@pytest.mark.slow
def test_outputs_of_many_megabytes_are_shown_and_their_cells_saved(notebook: Any) -> None:
    notebook.ok("import torch\nkept = [1]\nw = torch.ones(2)")
    shown = notebook.ok("%%gpu\nw.cuda()\nkept.append(2)\ndisplay({'text/plain': 'x' * (20 << 20)}, raw=True)")
    assert shown.kinds.count("display_data") == 1
    assert len(notebook.ok("%%gpu\nkept.append(3)\nprint('\\N{SNAKE}' * (5 << 20))").text) == (5 << 20) + 1
    failed = notebook.run("%%gpu\nkept.append(4)\nraise ValueError('x' * (20 << 20))")
    assert failed.ename == "ValueError" and failed.error.endswith(" more characters)")
    assert notebook.ok("kept").value == "[1, 2, 3, 4]"


@pytest.mark.slow
def test_cell_that_runs_out_of_gpu_memory_is_told_who_has_it_and_leaves_none_behind(shared: Any) -> None:
    shared.ok("import torch\nkept = [1]")
    first = shared.run("%%gpu\nkept.append(2)\nbig = torch.ones(1 << 20).cuda()\ntorch.empty(1 << 50, device='cuda')")
    assert first.ename == "OutOfMemoryError" and "largest variables there: big 4.0 MiB" in first.text, first
    again = shared.ok("%%gpu\nkept.append(3)\nbig.sum().item()")
    assert again.value == "1048576.0" and again.report["worker"] != first.report["worker"]
    assert shared.ok("kept").value == "[1, 2, 3]"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGUSR1])
def test_idle_worker_that_ends_between_cells_goes_unnoticed(shared: Any, number: int) -> None:
    shared.ok("import os, signal, torch\nkept = [1]")
    handler = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))"
    first = shared.ok(f"%%gpu\nkept.append(2)\nw = torch.ones(2).cuda()\n{handler}").report
    os.kill(first["worker"], number)
    again = shared.ok("%%gpu\nkept.append(3)\nw.sum().item()")
    assert again.value == "2.0" and again.report["worker"] != first["worker"]
    assert shared.ok("kept").value == "[1, 2, 3]"


MEMORY_BYTES = 512 << 20
HOG = "[b'x' * (1 << 26) for _ in range(64)]"


@pytest.mark.slow
def test_worker_that_the_system_kills_for_lack_of_memory_is_told_as_such_in_each_phase(
    cluster: LocalCluster, new_notebook: NewNotebook
) -> None:
    supervisor = psutil.Process(cluster.record.supervisor_pid)
    pids = [supervisor.pid, *(process.pid for process in supervisor.children(recursive=True))]
    with memory_group(MEMORY_BYTES, pids):
        notebook = new_notebook()
        notebook.ok(
            "import os, signal, torch\nkept = [1]\n"
            f"class Bomb:\n    def __getstate__(self):\n        {HOG}\n"
            "class Trap:\n    def __getstate__(self):\n        return {'set': True}\n"
            f"    def __setstate__(self, state):\n        {HOG}\ntrap = Trap()"
        )
        notebook.ok("%%gpu\nkept.append(2)\nw = torch.ones(2).cuda()")
        cells = {
            "running": f"kept.append(3)\n{HOG}", "saving": "kept.append(3)\nbomb = Bomb()", "preparing": "trap",
        }  # fmt: skip
        for phase, cell in cells.items():
            outcome = notebook.run(f"%%gpu\n{cell}")
            assert outcome.ename == "WORKER_LOST", (phase, outcome)
            assert ": the system ran out of memory (limit 512.0 MiB, it had used up to " in outcome.error, phase
            valid = "before the cell ran" if phase == "preparing" else "the variables are those of version "
            assert valid in outcome.error, (phase, outcome)
            assert notebook.ok("kept").value == "[1, 2]"
        handler = f"signal.signal(signal.SIGUSR1, lambda *_: {HOG})"
        idle = notebook.ok(f"%%gpu\nkept.append(3)\n{handler}").report
        os.kill(idle["worker"], signal.SIGUSR1)
        again = notebook.ok("%%gpu\nkept.append(4)\nw.sum().item()")
        assert again.value == "2.0" and again.report["worker"] != idle["worker"]
        assert notebook.ok("kept").value == "[1, 2, 3, 4]"


@pytest.mark.slow
def test_prepared_worker_killed_before_run_is_replaced(notebook: Any) -> None:
    notebook.ok("import torch\nvalue = torch.ones(100_000)")
    code = "(value.cuda() * 3).sum().item()"
    prepared = notebook.prepare(code)
    workers = _workers(notebook)
    assert prepared["worker_id"] in workers
    os.kill(workers[prepared["worker_id"]], signal.SIGKILL)
    assert notebook.ok(code).value == "300000.0"


def _workers(notebook: Any) -> dict[str, int]:
    """Worker id → pid of this machine's live workers, by their process titles."""
    found = {}
    for process in psutil.process_iter(["cmdline", "pid"]):
        title = " ".join(process.info["cmdline"] or [])
        if title.startswith("ll-worker:"):
            found[title.split(":", 1)[1].split()[0]] = process.info["pid"]
    return found


def test_store_restarted_between_cells_goes_unnoticed(cluster: LocalCluster, shared: Any) -> None:
    shared.ok("import torch\nx = torch.arange(5.0)")
    shared.ok("y = x.cuda() * 2")
    pid = cluster.pid("checkpoint-store")
    cluster.kill("checkpoint-store")
    # Longer than a cell waits for it, a busy machine may take to start it.
    cluster.wait_serving("checkpoint-store", other_than=pid)
    assert shared.ok("%%gpu\ny.sum().item()").value == "20.0"


def test_scheduler_restarted_between_cells_goes_unnoticed(cluster: LocalCluster, shared: Any) -> None:
    shared.ok("import torch\nx = torch.arange(5.0)")
    shared.ok("y = x.cuda() * 2")
    pid = cluster.pid("scheduler")
    cluster.kill("scheduler")
    cluster.wait_serving("scheduler", other_than=pid)
    assert shared.ok("%%gpu\ny.sum().item()").value == "20.0"


def test_frontend_restarted_between_cells_gets_the_log_again(cluster: LocalCluster, shared: Any) -> None:
    shared.ok("import torch\ndef twice(t):\n    return helper(t)\ndef helper(t):\n    return t.cuda() * 2")
    pid = cluster.pid("frontend")
    cluster.kill("frontend")
    cluster.wait_serving("frontend", other_than=pid)
    assert shared.ok("twice(torch.ones(3)).sum().item()").value == "6.0"


@pytest.mark.slow
def test_no_cluster_cpu_cells_run_and_the_first_gpu_cell_says_so(new_notebook: NewNotebook, tmp_path: Path) -> None:
    lonely = new_notebook(endpoint=tmp_path / "nobody.sock")
    assert lonely.ok("import torch\nx = torch.ones(3)\nx.sum().item()").value == "3.0"
    outcome = lonely.run("y = x.cuda()")
    assert outcome.ename == "NO_CLUSTER" and "looseleaf up" in outcome.error
    assert lonely.ok("x.sum().item()").value == "3.0"


def test_cuda_touch_in_a_cpu_cell_names_the_cure(shared: Any) -> None:
    shared.ok("import torch\nx = torch.ones(3)")
    outcome = shared.run("%%cpu\nx.cuda()")
    assert outcome.status == "error" and "CUDA_IN_CPU_CELL" in outcome.error + outcome.ename
    assert "%%gpu" in outcome.error
    assert shared.ok("x.sum().item()").value == "3.0"


def test_variable_that_cannot_be_saved_is_named_and_the_rest_is_saved(notebook: Any) -> None:
    notebook.ok("import torch")
    outcome = notebook.ok("%%gpu\nnumbers = (n for n in range(3))\nplain = [1, 2]\nt = torch.ones(2).cuda()")
    assert [item["name"] for item in outcome.report["unsaved"]] == ["numbers"]
    assert notebook.ok("plain").value == "[1, 2]"
    refused = notebook.run("next(numbers)")
    assert refused.status == "error" and "numbers" in refused.error
    assert notebook.ok("plain").value == "[1, 2]"


def test_generator_of_the_kernel_still_works_there(notebook: Any) -> None:
    notebook.ok("import torch\nnumbers = (n for n in range(3))\nfirst = next(numbers)")
    notebook.ok("t = torch.ones(2).cuda()")
    assert notebook.ok("next(numbers)").value == "1"
    refused = notebook.run("%%gpu\nnext(numbers)")
    assert refused.status == "error" and "numbers" in refused.error


@pytest.mark.slow
def test_two_notebooks_share_one_gpu_in_turn(new_notebook: NewNotebook) -> None:
    one, two = new_notebook(), new_notebook()
    for notebook in (one, two):
        notebook.ok("import torch, time")
    code = "%%gpu\nbegan = time.monotonic()\nx = torch.ones(1000).cuda()\ntime.sleep(0.5)\nended = time.monotonic()"
    messages = [notebook.start(code) for notebook in (one, two)]
    outcomes = [notebook.finish(message) for notebook, message in zip((one, two), messages, strict=True)]
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    spans = sorted(eval(notebook.ok("(began, ended)").value) for notebook in (one, two))
    assert spans[0][1] <= spans[1][0], "both held the only GPU at once"
    assert outcomes[0].report["worker"] != outcomes[1].report["worker"]


def test_scheduler_killed_while_a_cell_runs_adopts_its_lease(
    cluster: LocalCluster, notebook: Any, tmp_path: Path
) -> None:
    notebook.ok("import torch, pathlib, time\nkept = torch.ones(3)")
    may_end = tmp_path / "may-end"
    held_before_s = _pool(cluster).gpu_held_s
    killed: list[int] = []

    def replace_scheduler(outcome: Any) -> None:
        if "running" not in outcome.text or killed:
            return
        killed.append(cluster.pid("scheduler"))
        cluster.kill("scheduler")
        cluster.wait_serving("scheduler", other_than=killed[0])
        assert wait_for(lambda: _pool(cluster).ready, 20.0), "no daemon reported to the new scheduler"
        assert [len(host.leases) for host in _pool(cluster).hosts] == [1]
        may_end.touch()

    code = (
        "%%gpu\ntwice = kept.cuda() * 2\nprint('running', flush=True)\n"
        f"while not pathlib.Path({str(may_end)!r}).exists():\n    time.sleep(0.01)"
    )
    done = notebook.finish(notebook.start(code), on_output=replace_scheduler)
    assert done.status == "ok" and killed, done
    following = notebook.ok("%%gpu\ntwice.sum().item()")
    assert following.value == "6.0" and following.report["path"] != "cold"
    assert wait_for(lambda: not any(host.leases for host in _pool(cluster).hosts), 10.0), "a lease was never released"
    # Granted in one life of the scheduler and released in the next, the GPU was held all the time.
    assert _pool(cluster).gpu_held_s - held_before_s >= done.report["gpu_held_s"] > 0


@pytest.mark.slow
def test_scheduler_killed_while_a_cell_waits_serves_it_afterwards(
    cluster: LocalCluster, new_notebook: NewNotebook, tmp_path: Path
) -> None:
    one, two = new_notebook(), new_notebook()
    for notebook in (one, two):
        notebook.ok("import torch, pathlib, time")
    may_end = tmp_path / "may-end"
    waiting: list[str] = []

    def queue_and_kill(outcome: Any) -> None:
        if "running" not in outcome.text or waiting:
            return
        waiting.append(two.start("%%gpu\ntorch.ones(4).cuda().sum().item()"))
        assert wait_for(lambda: _pool(cluster).queued_runs == 1, 20.0), "the second cell never waited"
        pid = cluster.pid("scheduler")
        cluster.kill("scheduler")
        cluster.wait_serving("scheduler", other_than=pid)
        may_end.touch()

    code = (
        "%%gpu\nx = torch.ones(3).cuda()\nprint('running', flush=True)\n"
        f"while not pathlib.Path({str(may_end)!r}).exists():\n    time.sleep(0.01)"
    )
    assert one.finish(one.start(code), on_output=queue_and_kill).status == "ok"
    outcome = two.finish(waiting[0])
    assert (outcome.status, outcome.results) == ("ok", ["4.0"]), outcome


def _pool(cluster: LocalCluster) -> Any:
    async def ask() -> Any:
        async with open_channel(cluster.address("scheduler"), peer="scheduler") as channel:
            return await SchedulerServiceStub(channel).GetPool(scheduler_pb2.GetPoolRequest(), timeout_s=5.0)

    return asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize(("how", "said"), ENDS_IN_OTHER_PHASES)
def test_worker_killed_while_saving_leaves_the_parent_version(notebook: Any, how: str, said: str) -> None:
    notebook.ok(
        "import torch, os, ctypes\nkept = [1]\n"
        f"class Bomb:\n    def __getstate__(self):\n        {how}"
    )
    before = notebook.ok("%%gpu\nkept.append(2)\nw = torch.ones(2).cuda()").report["version"]
    outcome = notebook.run("%%gpu\nkept.append(3)\nprint('the cell ended')\nbomb = Bomb()")
    assert "the cell ended" in outcome.text
    assert outcome.ename == "WORKER_LOST" and f"version {before}" in outcome.error, outcome
    assert said in outcome.error
    assert notebook.ok("kept").value == "[1, 2]"
    assert notebook.ok("%%gpu\nkept.append(4)\nw.sum().item()").value == "2.0"
    assert notebook.ok("kept").value == "[1, 2, 4]"


@pytest.mark.slow
@pytest.mark.parametrize(("how", "said"), ENDS_IN_OTHER_PHASES)
def test_worker_killed_while_preparing_is_the_cells_error_and_the_session_lives_on(
    notebook: Any, how: str, said: str
) -> None:
    notebook.ok(
        "import torch, os, ctypes\nkept = 5\nclass Trap:\n    def __getstate__(self):\n        return {'set': True}\n"
        f"    def __setstate__(self, state):\n        {how}\ntrap = Trap()"
    )
    outcome = notebook.run("%%gpu\ntrap")
    assert outcome.ename == "WORKER_LOST" and "before the cell ran" in outcome.error, outcome
    assert said in outcome.error
    assert notebook.ok("%%gpu\nkept + 1").value == "6"
