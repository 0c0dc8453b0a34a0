"""A kernel whose cluster is absent, goes or loses a worker: CPU cells go on, and it says what became of the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernel_fake_daemon import FakeShell, FakeStore, run_cell

from looseleaf.errors import CapacityExceeded, PreconditionFailed, Unavailable

New = Callable[..., Any]
REJOINS = pytest.mark.leaks_ok("the module's kernel joins the daemon again; the new connection outlives the test")


@REJOINS
def test_worker_lost_while_running_state_is_the_parent_version(notebook: Any, daemon: Any) -> None:
    notebook.ok("x = [1]")

    async def lost(run: Any) -> Any:
        text = "the worker was killed by signal 9 (while the cell ran); this cell's changes are lost"
        await run.error("WORKER_LOST", text)
        return run.saved(run.body["version"], error_reason="WORKER_LOST", error_message=text, path="", pid=0)

    async def unsaved(run: Any) -> Any:
        await run.stream("did something\n")
        await run.ended()
        text = "the worker was killed while its changes were being saved; the variables are those of version 1"
        return run.saved(run.body["version"], error_reason="WORKER_LOST", error_message=text)

    daemon.plays.update(lost=lost, unsaved=unsaved)
    outcome = notebook.run("%%gpu\nx.append('lost')")
    assert outcome.error[0] == "WORKER_LOST" and outcome.kinds == ["error"]
    assert daemon.count("raise_epoch") == 1
    # The host could not fence its lost worker: joining again does, and nothing is said of a save.
    daemon.refuse["raise_epoch"] = Unavailable("STORE_DOWN", "the store does not answer")
    outcome = notebook.run("%%gpu\nx.append('lost')")
    assert outcome.error[0] == "WORKER_LOST" and outcome.kinds == ["error"]
    assert notebook.ok("x").result == "[1]" and daemon.count("hello") == 1
    # It had ended well, yet nothing of it is kept: that must not pass for success.
    outcome = notebook.run("%%gpu\nx.append('unsaved')")
    assert outcome.kinds == ["stream", "error"] and "version 1" in outcome.error[1]
    daemon.plays.clear()
    assert notebook.ok("%%gpu\nx.append(2)\nx").result == "[1, 2]"
    assert notebook.ok("x").result == "[1, 2]"


def test_host_lost_the_store_tells_whether_the_cell_finished(notebook: Any, daemon: Any) -> None:
    notebook.ok("x = 1")

    async def vanish(run: Any) -> Any:
        raise Unavailable("HOST_LOST", "the host h1 that ran this cell cannot be reached any more")

    async def save_and_vanish(run: Any) -> Any:
        shell = FakeShell()
        namespace, tracker = shell.user_ns, run.tracker(shell)
        namespace["x"] = 99
        tracker.save(run.execution_id, "gpu")
        return await vanish(run)

    daemon.plays.update(finished=save_and_vanish, vanish=vanish)
    outcome = notebook.run("%%gpu\nvanish")
    assert outcome.error[0] == "CELL_LOST" and "run the cell again" in outcome.error[1]
    assert notebook.ok("x").result == "1"
    outcome = notebook.ok("%%gpu\nfinished")
    assert outcome.kinds == ["stream"] and "finished and its changes are here" in outcome.text
    assert notebook.ok("x").result == "99"

    async def save_and_fail(run: Any) -> Any:
        await run.event("lease", host_id="h0", gpu=0, path="cold", worker_id="w-1")
        try:
            await save_and_vanish(run)
        except Unavailable:
            raise RuntimeError("a fault of the daemon's") from None

    async def save_late(run: Any) -> Any:
        await run.ended()
        before = run.body["version"]
        try:
            await save_and_vanish(run)
        except Unavailable:
            # Its commit was on its way to the store when the daemon spoke.
            return run.saved(before, error_reason="WORKER_LOST", error_message="the store did not say")

    daemon.plays["late"] = save_late
    notebook.ok("x = 1")
    assert "its changes are here" in notebook.ok("%%gpu\nlate").text
    assert notebook.ok("x").result == "99"
    daemon.plays["faulty"] = save_and_fail
    notebook.ok("x = 1")
    assert "finished and its changes are here" in notebook.ok("%%gpu\nfaulty").text
    assert notebook.ok("x").result == "99"

    async def indeterminate(run: Any) -> Any:
        raise PreconditionFailed("EXECUTION_INDETERMINATE", "nobody can tell whether the cell ran.")

    daemon.plays["unclear"] = indeterminate
    fenced = daemon.count("raise_epoch")
    assert notebook.run("%%gpu\nunclear").error[0] == "CELL_LOST" and daemon.count("raise_epoch") == fenced + 1


def test_cell_that_its_host_had_not_begun_is_run_once_more_by_itself(notebook: Any, daemon: Any) -> None:
    notebook.ok("x = 1")
    lost: list[str] = []

    async def not_started(run: Any) -> Any:
        if lost:
            return await run_cell(run)
        lost.append(run.execution_id)
        raise PreconditionFailed("CELL_NOT_STARTED", "its daemon was lost; nothing was run, run the cell again")

    daemon.plays["ready"] = not_started
    outcome = notebook.ok("%%gpu\nx += 1\nprint('ready', x)")
    assert outcome.text == "ready 2\n" and outcome.kinds == ["stream"]
    assert len({body["execution_id"] for type_, body in daemon.requests if type_ == "submit"}) == 2
    # Once: a daemon that ends whenever it makes this cell ready is told of.
    lost[:] = []

    async def never(run: Any) -> Any:
        lost.append(run.execution_id)
        raise PreconditionFailed("CELL_NOT_STARTED", "its daemon was lost; nothing was run, run the cell again")

    daemon.plays["ready"] = never
    outcome = notebook.run("%%gpu\nx += 1\nprint('ready', x)")
    assert outcome.error[0] == "CELL_NOT_STARTED" and "nothing was run" in outcome.error[1] and len(set(lost)) == 2
    assert notebook.ok("x").result == "2"


@REJOINS
def test_results_that_could_not_be_fetched_are_there_for_the_next_cell(notebook: Any, daemon: Any) -> None:
    notebook.ok("x = 1")
    notebook.ok("%%gpu\npass")
    daemon.refuse["manifest"] = Unavailable("STORE_DOWN", "the store does not answer")
    outcome = notebook.run("%%gpu\nx = 2")
    assert outcome.error[0] == "STORE_DOWN" and "could not be fetched yet" in outcome.error[1]
    assert notebook.ok("x").result == "2"


def test_kernel_without_a_cluster_runs_cpu_cells_and_joins_one_later(
    new_notebook: New, new_daemon: New, tmp_path: Any
) -> None:
    notebook = new_notebook(tmp_path / "d.sock")
    assert notebook.ok("x = 20\nprint('cpu')").text == "cpu\n"
    outcome = notebook.run("%%gpu\nx + 1")
    assert outcome.error[0] == "NO_CLUSTER" and "looseleaf up" in outcome.error[1] and outcome.kinds == ["error"]
    assert notebook.ok("x").result == "20"
    daemon = new_daemon()
    assert notebook.ok("%%gpu\nx + 1").result == "21"
    assert daemon.log[0]["source"] == "x = 20\nprint('cpu')"


@pytest.mark.slow
def test_daemon_gone_in_the_middle_of_a_cell_kernel_goes_on_and_rejoins(new_notebook: New, new_daemon: New) -> None:
    daemon = new_daemon()
    notebook = new_notebook(daemon.path)
    notebook.ok("x = 1")

    async def hang(run: Any) -> Any:
        await run.stream("started\n")
        await run.interrupts.get()

    daemon.plays["hang"] = hang
    msg_id = notebook.send("%%gpu\nx = 2  # hang")
    daemon.wait_for("submit")
    daemon.stop()
    outcome = notebook.finish(msg_id)
    assert outcome.error[0] == "CLUSTER_LOST" and "CPU cells go on" in outcome.error[1]
    assert notebook.ok("x += 10\nx").result == "11"
    assert notebook.run("%%gpu\nx").error[0] == "NO_CLUSTER"
    again = new_daemon(daemon.store)
    assert notebook.ok("%%gpu\nx").result == "11"
    assert again.wait_for("hello")["session_id"] == daemon.wait_for("hello")["session_id"]


@pytest.mark.slow
def test_daemon_gone_but_the_cell_was_saved_kernel_takes_it_over_later(new_notebook: New, new_daemon: New) -> None:
    daemon = new_daemon()
    notebook = new_notebook(daemon.path)
    notebook.ok("x = 1")

    async def save_and_hang(run: Any) -> Any:
        shell = FakeShell()
        namespace, tracker = shell.user_ns, run.tracker(shell)
        namespace["x"] = 77
        namespace["never_read"] = [5]
        tracker.save(run.execution_id, "gpu")
        await run.stream("saved\n")
        await run.interrupts.get()

    daemon.plays["hang"] = save_and_hang
    msg_id = notebook.send("%%gpu\nhang")
    daemon.store.wait_for_version(2)
    daemon.stop()
    assert notebook.finish(msg_id).error[0] == "CLUSTER_LOST"
    again = new_daemon(daemon.store)
    assert notebook.ok("x").result == "77"
    # A store that begins anew gets what is here.
    again.stop()
    new_daemon(FakeStore())
    assert notebook.ok("%%gpu\nx + 1").result == "78"
    assert notebook.run("%%gpu\nnever_read").error[0] == "UNSAVED_VARIABLE"


def test_daemon_back_in_time_tells_the_outcome_of_a_cell_that_had_no_gpu_yet(
    new_notebook: New, new_daemon: New
) -> None:
    daemon = new_daemon()
    notebook = new_notebook(daemon.path, LOOSELEAF_KERNEL_RECOVER_TIMEOUT_S="20")
    notebook.ok("x = 1")

    async def hang(run: Any) -> Any:
        await run.interrupts.get()

    daemon.plays["hang"] = hang
    msg_id = notebook.send("%%gpu\nhang")
    daemon.wait_for("submit")
    daemon.stop()
    new_daemon(daemon.store)
    outcome = notebook.finish(msg_id)
    assert outcome.error[0] == "CELL_LOST" and "version 1" in outcome.error[1]
    assert "nothing of it has run" in outcome.error[1] and "changes are lost" not in outcome.error[1]


def test_wrong_configuration_is_told_by_the_first_gpu_cell(new_notebook: New) -> None:
    notebook = new_notebook(LOOSELEAF_KERNEL_CONNECT_TIMEOUT_S="soon")
    assert notebook.ok("1 + 1").result == "2"
    outcome = notebook.run("%%gpu\n1")
    assert outcome.error[0] == "CONFIG_INVALID" and "LOOSELEAF_KERNEL_CONNECT_TIMEOUT_S" in outcome.error[1]


def test_named_session_commits_at_shutdown_and_is_continued(new_notebook: New, new_daemon: New) -> None:
    daemon = new_daemon()
    first = new_notebook(daemon.path, LOOSELEAF_SESSION="s-kept")
    first.ok("carried = {'a': 1}")
    first.close()
    assert len(daemon.store.commits) == 1
    second = new_notebook(daemon.path, LOOSELEAF_SESSION="s-kept")
    assert second.ok("1 + 1").result == "2"
    assert second.ok("carried").result == "{'a': 1}"


@pytest.mark.slow
def test_torch_questions_are_answered_for_the_pool_and_use_is_refused(new_notebook: New, new_daemon: New) -> None:
    pytest.importorskip("torch")
    daemon = new_daemon(host={"device": "emulated", "gpus": 2})
    notebook = new_notebook(daemon.path)
    notebook.ok("import torch")
    assert notebook.ok("torch.cuda.is_available(), torch.cuda.device_count()").result == "(True, 2)"
    outcome = notebook.run("%%cpu\ntorch.ones(2).cuda()")
    assert "CUDA_IN_CPU_CELL" in outcome.error[1] and "%%gpu" in outcome.error[1]
    assert notebook.run("torch.ones(2).cuda()").report["label"] == "gpu"
    # A cell that may need a GPU waits for none: it is tried here, and what that showed is learned.
    notebook.ok("import pathlib\ndevice = 'cuda'\ntorch.save(torch.ones(2), 'x.pt')")
    daemon.requests.clear()
    daemon.refuse["submit"] = CapacityExceeded("NO_GPU_FREE", "all are busy")
    tried = notebook.ok("torch.load(pathlib.Path('x').with_suffix('.pt'))")
    assert tried.result == "tensor([1., 1.])" and tried.report["path"] == "cpu" and tried.kinds == ["execute_result"]
    assert daemon.wait_for("submit")["waits"] is False
    again = notebook.ok("torch.load(pathlib.Path('x').with_suffix('.pt'))")
    assert again.report["path"] == "cpu" and "was learned" in again.report["reason"] and daemon.count("submit") == 1
