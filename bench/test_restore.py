"""A restore of 5 % and of all of a session's variables by a process that has none of them, on the host that saved them.

To *mapped*: the whole restore, without reading: every variable is an ordinary tensor again, from nothing, and from what
a preparation leaves to be done at Run. Of that, a preparation alone, which fetches the version and the small objects
and maps the memory; and of that the map calls alone. To the last byte read: each was read once, by XXH3-128. Beside it,
in the same rounds: `torch.load`, with and without `mmap=True`, and pickle, of a file with the same tensors, read in the
same way; a memcpy of them; and a private mapping of shared memory, made and read: no restore can be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, Target, alternate, publish
from pytest_benchmark.fixture import BenchmarkFixture
from state_process import VARIABLES, StateProcess

# In tensors of 4 MiB, 260 of them in 1 GiB, as in a model of many layers; and one large tensor a variable.
STATES = {"64 MiB": (64, 4), "1024 MiB": (1024, 4), "1024 MiB in 20 tensors": (1024, 1024)}
SMOKE_MIB = 16
ROUNDS = {64: 15, 1024: 7}
CLOSURES = {"5 %": VARIABLES // 20, "100 %": VARIABLES}
MAPPED_TARGET = Target("time_s", 0.005, "<= 5 ms")
READ_TARGET = Target("ratio", 1.2, "<= 1.2")


@dataclass
class Restores:
    """All rounds of one state and closure."""

    state: str
    size_mib: int
    closure: str
    bytes: int
    rounds: Rounds

    @property
    def what(self) -> str:
        """For the table."""
        return f"restore {self.closure} of {self.state}"

    @property
    def is_large(self) -> bool:
        """Whether the design's targets are for it."""
        return self.size_mib >= 1024 and self.closure == "100 %"


@pytest.fixture(scope="module", params=list(STATES))
def saved(
    request: pytest.FixtureRequest, storage_cluster: Any, tmp_path_factory: Any, smoke: bool
) -> Iterator[tuple[str, StateProcess]]:
    """A process of a session that another process has saved, with the files of the references."""
    if smoke and request.param != next(iter(STATES)):
        pytest.skip("one state is enough to see that it works")
    size_mib, tensor_mib = STATES[request.param]
    folder: Path = tmp_path_factory.mktemp("restores")
    with StateProcess(storage_cluster.kernel_socket(), folder) as saver:
        session = saver.call("fill", SMOKE_MIB if smoke else size_mib, tensor_mib << 20)["session"]
    with StateProcess(storage_cluster.kernel_socket(), folder, session) as state:
        yield request.param, state
    for file in folder.iterdir():
        file.unlink()


@pytest.fixture(scope="module", params=list(CLOSURES))
def restores(request: pytest.FixtureRequest, saved: tuple[str, StateProcess], smoke: bool) -> Restores:
    name, state = saved
    size_mib = STATES[name][0]
    count = CLOSURES[request.param]
    size_bytes = state.call("make_files", count)
    tasks = {
        "map": state.task("map_closure", count),
        "restore": state.task("restore", count),
        "memcpy": state.task("memcpy_of", count),
        "torch.load": state.task("torch_load", count, False),
        "torch.load(mmap=True)": state.task("torch_load", count, True),
        "pickle.load": state.task("cloudpickle_load", count),
        "warm mmap": state.task("mmap_read"),
    }
    rounds = alternate(tasks, rounds=1 if smoke else ROUNDS[size_mib], warmup_rounds=0 if smoke else 1)
    return Restores(name, size_mib, request.param, size_bytes, rounds)


@pytest.mark.timeout(900)
def test_restore_map_calls_alone(benchmark: BenchmarkFixture, restores: Restores) -> None:
    publish(
        benchmark, restores.rounds, "map", f"{restores.what}, map calls alone",
        ("torch.load(mmap=True)/loaded", None), closure_bytes=restores.bytes,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_restore_preparation_alone(benchmark: BenchmarkFixture, restores: Restores) -> None:
    publish(
        benchmark, restores.rounds, "restore/prepared", f"{restores.what}, preparation alone",
        ("torch.load(mmap=True)/loaded", None), closure_bytes=restores.bytes,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_restore_to_mapped(benchmark: BenchmarkFixture, restores: Restores) -> None:
    publish(
        benchmark, restores.rounds, "restore/mapped", f"{restores.what}, to mapped",
        ("torch.load(mmap=True)/loaded", None), ("torch.load/loaded", None), ("pickle.load/loaded", None),
        *([(None, MAPPED_TARGET)] if restores.is_large else []), closure_bytes=restores.bytes,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_restore_in_a_prepared_worker(benchmark: BenchmarkFixture, restores: Restores) -> None:
    publish(
        benchmark, restores.rounds, "restore/attached", f"{restores.what} in a prepared worker, to mapped",
        ("torch.load(mmap=True)/loaded", None), *([(None, MAPPED_TARGET)] if restores.is_large else []),
        closure_bytes=restores.bytes,
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_restore_to_last_byte_read(benchmark: BenchmarkFixture, restores: Restores) -> None:
    publish(
        benchmark, restores.rounds, "restore/read", f"{restores.what}, to last byte read",
        ("warm mmap", READ_TARGET if restores.is_large else None),
        ("torch.load(mmap=True)/read", None), ("torch.load/read", None), ("pickle.load/read", None), ("memcpy", None),
        closure_bytes=restores.bytes,
    )  # fmt: skip
