"""Saves for some variables only: what the others hold stays with the kernel, and is never lost silently."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_graphs import FEWER, Names, assert_same_graph, containers, graphs, hold, make_tracker, mutate
from checkpoint_nursery import MemoryIO
from hypothesis import strategies as st

from looseleaf.checkpoint.lazy import Budget, lazy_names
from looseleaf.checkpoint.stub import is_stub
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.units import MIB

SIZE = 100_000


def make_kernel(namespace: dict[str, Any], io: MemoryIO, *, budget_bytes: int = 0) -> StateTracker:
    kernel = make_tracker(namespace, io, is_kernel=True)
    kernel.lazy_budget = lambda: Budget(budget_bytes, budget_bytes)
    return kernel


def make_worker(io: MemoryIO, *names: str) -> tuple[dict[str, Any], StateTracker]:
    live: dict[str, Any] = {}
    worker = make_tracker(live, io)
    report = worker.restore(names)
    assert not report.failed
    return live, worker


def follow(kernel: StateTracker, io: MemoryIO) -> Any:
    return kernel.advance(io.versions[-1])


def of_every_kind() -> dict[str, Any]:
    """Large values of each kind of memory that a kernel has."""
    return {
        "array": np.arange(SIZE), "tensor": torch.arange(SIZE), "text": SimpleNamespace(held=b"x" * (2 * MIB)),
        "mutable": bytearray(2 * MIB), "nested": {"deep": [np.full(SIZE, 2.0)]},
    }  # fmt: skip


KINDS = list(of_every_kind())


# -- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", FEWER)
def test_save_for_some_then_of_all_is_a_save_of_all(examples: int) -> None:
    hold(_then_all, graphs(), st.data(), examples=examples)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", FEWER)
def test_needed_variables_are_complete_for_another_holder_and_no_other_is_wrong(examples: int) -> None:
    hold(_needed_is_complete, graphs(), st.data(), examples=examples)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", FEWER)
def test_cells_on_workers_between_saves_for_some_lose_nothing(examples: int) -> None:
    hold(_cells_in_turn, graphs(), st.data(), examples=examples)


def some_names(namespace: Names, data: st.DataObject) -> list[str]:
    return data.draw(st.lists(st.sampled_from(list(namespace)), max_size=3, unique=True))


def _then_all(namespace: Names, data: st.DataObject) -> None:
    io, other = MemoryIO(), MemoryIO()
    kernel = make_kernel(namespace, io, budget_bytes=data.draw(st.sampled_from([0, 100_000])))
    for step in range(data.draw(st.integers(1, 3))):
        kernel.save(f"x{step}", needed=some_names(namespace, data))
    report = kernel.save("all")
    assert (report.lazy_bytes, report.unsaved) == (0, ())
    restored: dict[str, Any] = {}
    make_tracker(restored, io).restore(list(namespace))
    assert_same_graph(namespace, restored)
    whole = make_tracker(namespace, other)
    whole.save("x")
    assert dict(kernel.manifest.payloads) == dict(whole.manifest.payloads)


def _needed_is_complete(namespace: Names, data: st.DataObject) -> None:
    io = MemoryIO()
    kernel, names = make_kernel(namespace, io), some_names(namespace, data)
    kernel.save("x", needed=names)
    restored: dict[str, Any] = {}
    worker = make_tracker(restored, io)
    assert worker.restore(names).failed == ()
    assert_same_graph({name: namespace[name] for name in names}, {name: restored[name] for name in names})
    failed = worker.restore(list(namespace)).failed
    assert {entry.reason for entry in failed} <= {"NOT_COMMITTED"}
    assert {entry.name for entry in failed} <= set(lazy_names(kernel.manifest))
    there = [name for name in namespace if not is_stub(restored[name])]
    assert_same_graph({name: namespace[name] for name in there}, {name: restored[name] for name in there})


def _cells_in_turn(reference: Names, data: st.DataObject) -> None:
    io = MemoryIO()
    make_tracker(reference, io).save("x")
    here: dict[str, Any] = {}
    kernel = make_kernel(here, io, budget_bytes=data.draw(st.sampled_from([0, 100_000])))
    kernel.restore(list(reference))
    there: dict[str, Any] = {}
    worker = make_tracker(there, io)
    for step in range(data.draw(st.integers(1, 4))):
        for live, tracker in ((here, kernel), (there, worker)):
            names = some_names(reference, data)
            if tracker is worker:
                kernel.save(f"k{step}", needed=None if data.draw(st.integers(0, 3)) == 0 else names)
            report = tracker.restore(names, version=len(io.versions))
            assert report.failed == ()
            mine, theirs = containers([live[n] for n in names]), containers([reference[n] for n in names])
            assert len(mine) == len(theirs)
            for number in data.draw(st.lists(st.integers(1, 40), max_size=4)):
                if mine:
                    at, share = number % len(mine), number % 7 % len(mine)
                    mutate(mine[at], number + step, mine[share])
                    mutate(theirs[at], number + step, theirs[share])
            if len(names) > 1 and data.draw(st.booleans()):
                del live[names[0]], reference[names[0]]
            del mine, theirs
        worker.save(f"w{step}")
        follow(kernel, io)
    assert kernel.save("all").unsaved == ()
    final: dict[str, Any] = {}
    make_tracker(final, io).restore(list(reference))
    assert_same_graph(reference, Names({name: final[name] for name in reference}))
    assert set(final) == set(reference)


# -- one by one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_no_cell_needs_are_neither_put_nor_listed_with_regions(kind: str) -> None:
    io, namespace = MemoryIO(), {**of_every_kind(), "wanted": np.ones(SIZE)}
    kernel = make_kernel(namespace, io)
    report = kernel.save("x", needed=["wanted"])
    assert report.lazy_bytes > 0 and lazy_names(kernel.manifest) == KINDS
    assert sum(map(len, io.regions.values())) == namespace["wanted"].nbytes
    lacks = kernel.manifest.lacks_bytes_of
    assert (lacks(["wanted"]), lacks([kind]), lacks(None)) == (False, True, True)
    live, worker = make_worker(io, "wanted")
    failed = worker.restore([kind]).failed
    assert [(entry.name, entry.reason) for entry in failed] == [(kind, "NOT_COMMITTED")]
    assert kernel.save("y", needed=[kind]).lazy_bytes > 0
    live, worker = make_worker(io, kind)
    assert str(live[kind]) == str(namespace[kind])


def test_what_fits_into_the_budget_is_complete() -> None:
    io, namespace = MemoryIO(), {"small": np.ones(SIZE), "large": np.ones(2 * SIZE)}
    kernel = make_kernel(namespace, io, budget_bytes=12 * SIZE)
    kernel.save("x", needed=[])
    assert lazy_names(kernel.manifest) == ["large"]
    make_worker(io, "small")


def test_clean_memory_within_the_budget_stays_complete_and_dirty_beyond_it_does_not() -> None:
    io, namespace = MemoryIO(), {"clean": np.ones(SIZE), "dirty": np.ones(SIZE)}
    kernel = make_kernel(namespace, io)
    kernel.save("x")
    kernel.lazy_budget = lambda: Budget(2 * 8 * SIZE, 0)
    namespace["dirty"][0] = 2
    kernel.save("y", needed=[])
    assert lazy_names(kernel.manifest) == ["dirty"]


def test_code_of_what_is_needed_names_what_is_needed_too(process: Any) -> None:
    result = process("""
from looseleaf.checkpoint.lazy import Budget, lazy_names
cell("import numpy as np; table = np.ones(100_000); other = np.ones(100_000)\\ndef use(): return inner()\\ndef inner(): return table")
tracker.is_kernel, tracker.lazy_budget = True, lambda: Budget(0, 0)
tracker.save("x", needed=["use"])
result = lazy_names(tracker.manifest)
""")  # noqa: E501
    assert result == ["other"]


def _box_whose_other_part_a_worker_changed(kind: str) -> tuple[MemoryIO, dict[str, Any], StateTracker, str]:
    """A store, a kernel's variables, the kernel, and the text of what is lazy: the first part of `box`."""
    shared: list[int] = []
    io, value = MemoryIO(), of_every_kind()[kind]
    namespace: dict[str, Any] = {"box": [value, shared], "shared": shared}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=["shared"])
    live, worker = make_worker(io, "shared")
    live["shared"].append(5)
    worker.save("w")
    return io, namespace, kernel, str(value)


@pytest.mark.parametrize("kind", KINDS)
def test_worker_that_changes_a_shared_object_leaves_the_lazy_bytes_alive(kind: str) -> None:
    io, namespace, kernel, text = _box_whose_other_part_a_worker_changed(kind)
    assert "box" in follow(kernel, io).dropped and is_stub(namespace["box"])
    # Once more without it, then with it.
    kernel.save("y", needed=["shared"])
    assert lazy_names(kernel.manifest) == ["box"]
    assert kernel.save("z").lazy_bytes == 0
    live, _worker = make_worker(io, "box")
    assert str(live["box"][0]) == text and live["box"][1] == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_stub_whose_bytes_only_this_kernel_has_is_loaded_here(kind: str) -> None:
    io, namespace, kernel, text = _box_whose_other_part_a_worker_changed(kind)
    follow(kernel, io)
    assert kernel.materialise(["box"]).failed == ()
    assert str(namespace["box"][0]) == text and namespace["box"][1] == [5]
    assert kernel.save("y").lazy_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_variable_takes_its_lazy_bytes_along(kind: str) -> None:
    io, namespace = MemoryIO(), of_every_kind()
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=[])
    before = kernel.manifest.lazy_bytes()
    del namespace[kind]
    kernel.save("y", needed=[])
    assert kernel.manifest.lazy_bytes() < before and kind not in lazy_names(kernel.manifest)
    for name in KINDS:
        namespace.pop(name, None)
    assert kernel.save("z").lazy_bytes == 0 and not io.regions


def test_memory_of_a_deleted_variable_is_freed_at_once() -> None:
    io, namespace = MemoryIO(), {"array": np.ones(SIZE), "tensor": torch.ones(SIZE)}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=[])
    gc.disable()
    alive = [weakref.ref(namespace["array"]), weakref.ref(namespace["tensor"].untyped_storage())]
    namespace["tensor"].resize_(SIZE + 1)
    namespace.clear()
    gone = [ref() is None for ref in alive]
    gc.enable()
    assert gone == [True, True]


def test_worker_that_binds_the_name_anew_ends_the_lazy_bytes() -> None:
    io, namespace = MemoryIO(), {"array": np.ones(SIZE), "seed": [1]}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=["seed"])
    live, worker = make_worker(io, "seed")
    live["array"] = 5
    worker.save("w")
    follow(kernel, io)
    assert (namespace["array"], kernel.manifest.lazy_bytes()) == (5, 0)


def test_bytes_changed_in_place_after_they_stayed_here_are_the_newer_ones() -> None:
    io, namespace = MemoryIO(), {"array": np.zeros(SIZE), "seed": [1]}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=["seed"])
    namespace["array"][3] = 7
    kernel.save("y", needed=["array"])
    assert make_worker(io, "array")[0]["array"][3] == 7
    # A version that was made without its bytes never gets later ones.
    failed = make_tracker({}, io).restore(["array"], version=1).failed
    assert [entry.reason for entry in failed] == ["NOT_COMMITTED"]


def test_warm_worker_gives_up_what_may_have_changed_since() -> None:
    io, namespace = MemoryIO(), {"array": np.zeros(SIZE), "seed": [1]}
    kernel = make_kernel(namespace, io)
    kernel.save("x")
    live, worker = make_worker(io, "array")
    namespace["array"][3] = 7
    kernel.save("y", needed=["seed"])
    worker.advance(io.versions[-1])
    assert is_stub(live["array"])
    worker.save("w")
    follow(kernel, io)
    assert kernel.save("z").lazy_bytes == 0
    assert make_worker(io, "array")[0]["array"][3] == 7


# -- lost ------------------------------------------------------------------------------------------------------------


def test_kernel_that_takes_over_names_what_died_with_the_first() -> None:
    io, namespace = MemoryIO(), {**of_every_kind(), "kept": [1]}
    make_kernel(namespace, io).save("x", needed=["kept"])
    here: dict[str, Any] = {}
    second = make_kernel(here, io)
    second.restore([])
    assert [entry.reason for entry in second.materialise(["array"]).failed] == ["NOT_COMMITTED"]
    report = second.save("y")
    assert {entry.name: entry.reason for entry in report.unsaved} == dict.fromkeys(KINDS, "NOT_COMMITTED")
    assert list(second.manifest.roots) == ["kept"] and not second.manifest.payloads
    with pytest.raises(Exception, match="Run the cell that makes it again") as raised:
        here["array"] + 1
    assert raised.value.fields["cause"] == "NOT_COMMITTED"
    assert second.save("z").nothing_changed
    here["array"] = np.ones(SIZE)
    assert {entry.name for entry in second.save("v").unsaved} == set(KINDS) - {"array"}


def test_worker_never_takes_lazy_bytes_for_lost() -> None:
    io, namespace = MemoryIO(), {"array": np.ones(SIZE), "seed": [1]}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=["seed"])
    live, worker = make_worker(io, "seed")
    live["more"] = 1
    assert worker.save("w").unsaved == ()
    follow(kernel, io)
    assert kernel.save("y").lazy_bytes == 0
    make_worker(io, "array")


def test_older_version_made_the_newest_has_only_bytes_that_are_its_own() -> None:
    io, namespace = MemoryIO(), {"array": np.zeros(SIZE), "seed": [1]}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=["seed"])
    namespace["array"][3] = 7
    namespace["seed"].append(2)
    kernel.save("y", needed=["seed"])
    report = kernel.check_out(io.versions[0], "z")
    assert [problem.partition(" ")[0] for problem in report.problems] == ["`array`"]
    assert [entry.name for entry in kernel.manifest.unsaved] == ["array"]
    assert is_stub(namespace["array"])
    assert kernel.materialise(["seed"]).failed == () and namespace["seed"] == [1]


def test_version_made_the_newest_right_away_keeps_its_bytes() -> None:
    io, namespace = MemoryIO(), {"array": np.zeros(SIZE)}
    kernel = make_kernel(namespace, io)
    kernel.save("x", needed=[])
    kernel.check_out(io.versions[0], "z")
    assert kernel.save("y").lazy_bytes == 0
    make_worker(io, "array")
