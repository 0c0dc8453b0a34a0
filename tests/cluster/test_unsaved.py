"""Variables that cannot be saved: their worker is kept for a time, cells that need them run there or are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GPU = {"looseleaf": {"device": "gpu"}}
KEEP_S = 6.0
CELL_TIMEOUT_S = 90.0
THREADS_ENV = {"OMP_NUM_THREADS": "1"}
FIRST = (
    "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\ntorch.manual_seed(3)\n"
    "loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=3, shuffle=True)\n"
    "it = iter(loader)\nprint(next(it)[0].tolist())"
)
BATCHES = [
    FIRST,
    "print(next(it)[0].tolist(), torch.rand(1).item())",
    "total = sum(batch[0].sum().item() for batch in it)\nprint(total, torch.rand(1).item())",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts with a virtual GPU each; a worker is kept for `KEEP_S`, longer than any other idle one."""
    cluster = LocalCluster.start(
        data=tmp_path_factory.mktemp("unsaved") / "d", device="emulated", gpus=1, hosts=2, emulated_delays=False,
        keep_unsaved_s=KEEP_S, keep_warm_s=300.0,
    )  # fmt: skip
    yield cluster
    cluster.stop()


@pytest.fixture
def new(new_notebook: Callable[..., Any]) -> Callable[[], Any]:
    return new_notebook


def gpu(notebook: Any, code: str) -> Any:
    return notebook.finish(notebook.start(code, GPU))


def test_loaders_iterator_gives_the_same_batches_over_three_gpu_cells_as_on_an_ordinary_kernel(new: Any) -> None:
    command, env = [sys.executable, "-c", "\n".join(BATCHES)], {**os.environ, **THREADS_ENV}
    reference = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    notebook = new()
    outcomes = [gpu(notebook, cell) for cell in BATCHES]
    assert [outcome.ename for outcome in outcomes] == ["", "", ""]
    assert "".join(outcome.text for outcome in outcomes) == reference.communicate(timeout=CELL_TIMEOUT_S)[0]
    assert len({outcome.report["worker"] for outcome in outcomes}) == 1


def test_cpu_cell_is_told_where_the_variable_lives_and_what_to_do(new: Any) -> None:
    notebook = new()
    first = gpu(notebook, "numbers = (n * n for n in range(9))\nnext(numbers)")
    refused = notebook.run("next(numbers)")
    assert refused.ename == "UNSAVED_VARIABLE"
    assert f"GPU process {first.report['worker']}" in refused.error and "put %%gpu" in refused.error
    # A preparation at a newer version, on that worker, takes nothing away.
    notebook.ok("other = 1")
    notebook.prepare("%%gpu\nnext(numbers), other")
    assert notebook.run("%%gpu\nnext(numbers), other").value == "(1, 1)"


def test_interrupted_cell_leaves_the_variable_where_it_was(new: Any) -> None:
    notebook = new()
    gpu(notebook, "import time\nnumbers = (n for n in range(9))")
    message_id = notebook.start("for n in numbers:\n    print(n)\n    time.sleep(0.01 if n < 2 else 60)", GPU)

    def interrupt(outcome: Any) -> None:
        if outcome.text == "0\n1\n2\n" and not outcome.ename:
            notebook.manager.interrupt_kernel()
            outcome.text += "interrupted\n"

    assert notebook.finish(message_id, on_output=interrupt).ename == "KeyboardInterrupt"
    assert gpu(notebook, "next(numbers)").value == "3"


def test_variable_of_the_kernel_is_used_there_and_a_gpu_cell_that_needs_it_is_refused(new: Any) -> None:
    notebook = new()
    notebook.ok("lines = iter_ = (n for n in range(9))\nnext(lines)")
    refused = gpu(notebook, "next(lines)")
    assert refused.ename == "UNSAVED_VARIABLE" and "lives in the notebook's kernel" in refused.error
    assert notebook.ok("next(lines)").value == "1"


def test_cell_that_needs_variables_of_two_processes_is_refused_with_both_named(new: Any) -> None:
    notebook = new()
    notebook.ok("mine = (n for n in range(9))")
    gpu(notebook, "theirs = (n for n in range(9))")
    refused = gpu(notebook, "next(mine), next(theirs)")
    assert refused.ename == "UNSAVED_VARIABLE" and "'mine' lives in the notebook's kernel" in refused.error
    assert "'theirs' lives in the GPU process" in refused.error


def test_worker_that_was_killed_is_named_as_the_place_that_is_gone(new: Any) -> None:
    notebook = new()
    first = gpu(notebook, "numbers = (n for n in range(9))")
    os.kill(first.report["worker"], signal.SIGKILL)
    refused = gpu(notebook, "next(numbers)")
    assert refused.ename == "UNSAVED_GONE", refused.error
    assert "'numbers'" in refused.error and "SIGKILL" in refused.error and "ake it again" in refused.error
    assert "is gone" in notebook.run("next(numbers)").error, "the kernel remembers"
    again = gpu(notebook, "next(numbers)")
    assert again.ename == "UNSAVED_VARIABLE" and "is gone" in again.error
    gpu(notebook, "numbers = (n for n in range(9))\nnext(numbers)")
    assert gpu(notebook, "next(numbers)").value == "1"


@pytest.mark.slow
def test_other_notebooks_wait_for_the_holders_time_and_then_it_makes_way(new: Any) -> None:
    notebooks = [new() for _ in range(3)]
    for notebook in notebooks[:2]:
        assert gpu(notebook, "numbers = (n for n in range(9))\nnext(numbers)").value == "0"
    began_s = time.monotonic()
    assert gpu(notebooks[2], "7").value == "7"
    assert time.monotonic() - began_s > KEEP_S / 3
    outcomes = [gpu(notebook, "next(numbers)") for notebook in notebooks[:2]]
    [gone] = [outcome for outcome in outcomes if outcome.ename]
    assert gone.ename == "UNSAVED_GONE" and "made way for another cell" in gone.error


def test_deleting_or_rebinding_the_variable_frees_the_gpu_at_once(new: Any) -> None:
    notebooks = [new() for _ in range(3)]
    for notebook in notebooks[:2]:
        gpu(notebook, "numbers = (n for n in range(9))")
    notebooks[0].ok("del numbers")
    notebooks[1].ok("numbers = 3")
    began_s = time.monotonic()
    assert gpu(notebooks[2], "7").value == "7"
    assert time.monotonic() - began_s < KEEP_S * 0.8


def test_value_that_holds_an_older_state_of_a_variable_is_reported_by_name_once(new: Any) -> None:
    notebook = new()
    notebook.ok("data = [1, 2, 3]\nmine = (n for n in data)\nnext(mine)")
    changed = gpu(notebook, "data.append(4)")
    assert changed.text.count("'mine' cannot be saved and still holds") == 1, changed.text
    assert notebook.ok("data, list(mine)").value == "([1, 2, 3, 4], [2, 3])"
    gpu(notebook, "theirs = (n for n in data)\nnext(theirs)")
    notebook.ok("data.append(5)")
    told = gpu(notebook, "list(theirs), data")
    assert told.value == "([2, 3, 4], [1, 2, 3, 4, 5])"
    assert told.text.count("'theirs' cannot be saved and still holds") == 1, told.text
    assert "still holds" not in gpu(notebook, "data").text
