"""A save of a session's state that was restored in this process: only memory with written pages is read.

To *staged*, by a process that restored all of it and read every byte; the first save after that and the second, each
after a change of 0 and of 1 % of the regions. Beside it, in the same rounds: a warm unsynced `torch.save` of the same
tensors, and one scan of them by XXH3-128.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, Target, alternate, publish
from pytest_benchmark.fixture import BenchmarkFixture
from state_process import StateProcess

STATE_MIB = 1024
SMOKE_MIB = 16
ROUNDS = 7
DIRTY = {"0 %": 0.0, "1 %": 0.01}
TARGETS = {"0 %": Target("ratio", 1 / 15, "<= 1/15"), "1 %": Target("ratio", 1 / 10, "<= 1/10")}


@pytest.fixture(scope="module")
def rounds(storage_cluster: Any, tmp_path_factory: Any, smoke: bool) -> Rounds:
    folder: Path = tmp_path_factory.mktemp("restored")
    with StateProcess(storage_cluster.kernel_socket(), folder) as state:
        state.call("fill", SMOKE_MIB if smoke else STATE_MIB)
        tasks = {
            **{dirty: state.task("save_restored", fraction) for dirty, fraction in DIRTY.items()},
            "torch.save": state.task("torch_save", False),
            "XXH3 scan": state.task("scan"),
        }
        measured = alternate(tasks, rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1)
    for file in folder.iterdir():
        file.unlink()
    return measured


@pytest.mark.timeout(900)
@pytest.mark.parametrize("save", ["first", "second"])
@pytest.mark.parametrize("dirty", list(DIRTY))
def test_save_of_restored_state(benchmark: BenchmarkFixture, rounds: Rounds, dirty: str, save: str) -> None:
    what = f"{save} save of restored {STATE_MIB} MiB, {dirty} dirty, to staged"
    publish(benchmark, rounds, f"{dirty}/{save}", what, ("torch.save", TARGETS[dirty]), ("XXH3 scan", None))
