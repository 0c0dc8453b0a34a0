"""When a cell that runs on the CPU is doubted, when it can be taken back, and what is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from looseleaf.kernel.label_log import ENTRIES_MAX, LabelLog, observed_here, observed_there
from looseleaf.kernel.shell_undo import OpenedComms, ShellUndo
from looseleaf.kernel.trial import is_doubted, may_use_torch, waits_for_gpu, why_not_again
from looseleaf.recipe import DeviceLabel, Observation, Recipe
from looseleaf.recipe.label import CERTAIN, WAITS

CPU, GPU = DeviceLabel.CPU, DeviceLabel.GPU


def recipe(label: DeviceLabel, confidence: float, **more: Any) -> Recipe:
    return Recipe(label=label, confidence=confidence, guess="g", reason="Because.", **more)


@pytest.mark.parametrize(
    ("found", "doubted"),
    [
        (recipe(CPU, CERTAIN), False), (recipe(CPU, CERTAIN - 0.01), True), (recipe(CPU, 1.0), False),
        (recipe(GPU, 0.99), True), (recipe(GPU, 1.0), False), (Recipe(), False),
    ],
)  # fmt: skip
def test_what_is_doubted(found: Recipe, doubted: bool) -> None:
    assert is_doubted(found) is doubted


def test_cell_that_cannot_meet_torch_is_not_doubted() -> None:
    assert not may_use_torch(recipe(CPU, 0.8, imports=("pandas",)), {"numpy"})
    assert may_use_torch(recipe(CPU, 0.8), {"torch"})
    assert may_use_torch(recipe(CPU, 0.8, imports=("torch.nn",)), ())
    assert may_use_torch(recipe(CPU, 0.8, file_dependencies=("helper.py",)), ())


def test_only_a_gpu_cell_of_little_confidence_whose_use_would_be_seen_does_not_wait() -> None:
    low = WAITS - 0.01
    assert not waits_for_gpu(recipe(GPU, low), "x.to(d)", {"torch"})
    for found, source, loaded in (
        (recipe(GPU, WAITS), "x.to(d)", {"torch"}), (recipe(GPU, low, device_bytes=1), "x.to(d)", {"torch"}),
        (recipe(GPU, low, imports=("jax.numpy",)), "f()", {"torch"}), (recipe(GPU, low), "f()", {"jax"}),
        (recipe(GPU, low), "!python train.py", {"torch"}),
    ):  # fmt: skip
        assert waits_for_gpu(found, source, loaded), (found, source)


def test_cell_is_not_run_again_after_effects_outside_or_on_what_no_version_holds() -> None:
    found = recipe(CPU, 0.8, names=("gen", "xs"))
    assert why_not_again([], [], found, threads_left=False) == ""
    assert why_not_again([], ["other"], found, threads_left=False) == ""
    told = why_not_again(["wrote to 'a'", "used the network"], ["gen"], found, threads_left=True)
    assert told == "it wrote to 'a' and used the network before"
    assert "`gen`" in why_not_again([], ["gen", "other"], found, threads_left=True)
    assert "thread" in why_not_again([], [], found, threads_left=True)


def test_run_teaches_unless_a_person_decided_or_it_failed_untouched() -> None:
    found = recipe(CPU, 0.8)
    assert observed_here(found, "Tensor.cuda", 2.0, ok=False) == Observation("g", True, 0, 2.0)
    assert observed_here(found, "", 2.0, ok=True) == Observation("g", False, 0, 2.0)
    assert observed_here(found, "", 2.0, ok=False) is None
    assert observed_here(recipe(CPU, 1.0), "Tensor.cuda", 2.0, ok=True) is None
    figures = {"figures": {"gpu_pinned_s": 0.5, "run_s": 1.5}, "peak_device_bytes": 7}
    assert observed_there(found, figures, ok=False) == Observation("g", True, 7, 1.5)
    idle = {"figures": {"gpu_pinned_s": 0.0, "run_s": 1.0}}
    assert observed_there(found, idle, ok=False) is None
    assert observed_there(found, idle, ok=True) == Observation("g", False, 0, 1.0)
    assert observed_there(found, None, ok=True) is None


def test_label_log_keeps_the_newest_and_says_what_was_learned() -> None:
    log = LabelLog()
    for number in range(ENTRIES_MAX + 1):
        log.add(number, "x", recipe(CPU, 0.9), "cpu", Observation("g", False))
    log.add(7, "x", recipe(CPU, 0.8), "cpu, then gpu", Observation("g", True, 2048), "Tensor.cuda")
    log.add(8, "x", recipe(CPU, 0.8), "cpu", Observation("g", True), "Tensor.cuda")
    log.add(9, "x", recipe(GPU, 0.8), "gpu", Observation("g", False))
    assert len(log.newest(10_000)) == ENTRIES_MAX
    assert [entry.note for entry in log.newest(4)] == [
        "", "used the GPU (Tensor.cuda), run again on a GPU; learned: gpu, at most 2.0 KiB there",
        "used the GPU (Tensor.cuda), not run again; learned: gpu", "did not use the GPU; learned",
    ]  # fmt: skip


def test_shell_remembers_a_cell_that_is_taken_back_once() -> None:
    make: Any = InteractiveShell
    shell = make(config=Config(HistoryManager={"enabled": False}))
    shell.run_cell("1 + 1", store_history=True)
    undo = ShellUndo(shell)
    shell.run_cell("x = 5\n2 + 2", store_history=True)
    for name in ("_2", "x"):
        # As a rollback of the variables does.
        del shell.user_ns[name]
    undo.undo()
    told = [shell.execution_count, shell.user_ns["In"], dict(shell.user_ns["Out"]), shell.user_ns["_i"]]
    assert told == [2, ["", "1 + 1"], {1: 2}, ""] and "_i2" not in shell.user_ns
    undo.redo()
    assert shell.user_ns["In"] == ["", "1 + 1", "x = 5\n2 + 2"] and shell.user_ns["_i2"] == "x = 5\n2 + 2"
    assert shell.user_ns["_i"] == "1 + 1"


def test_comms_that_a_cell_opened_are_closed_and_others_stay() -> None:
    class Comm:
        def __init__(self, fails: bool = False) -> None:
            self.closed, self.fails = False, fails

        def close(self) -> None:
            self.closed = True
            if self.fails:
                raise ValueError("a person's")

    manager = SimpleNamespace(comms={"old": Comm()})
    opened = OpenedComms(manager)
    manager.comms |= {"bad": Comm(fails=True), "new": Comm()}
    opened.close()
    assert {name: comm.closed for name, comm in manager.comms.items()} == {"old": False, "bad": True, "new": True}
