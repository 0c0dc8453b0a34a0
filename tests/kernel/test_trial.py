"""When a cell that runs on the CPU is doubted, when it can be taken back, and what is told of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from looseleaf.checkpoint.lazy import LAZY_MOVE_BYTES_MAX
from looseleaf.checkpoint.stub import is_stub
from looseleaf.devices import touch
from looseleaf.errors import PreconditionFailed, Unavailable
from looseleaf.kernel.interrupts import interrupts_held
from looseleaf.kernel.label_log import ENTRIES_MAX, LabelLog, observed_here, observed_there
from looseleaf.kernel.loop_work import LoopWork
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.shell_undo import OpenedComms, ShellUndo
from looseleaf.kernel.trial import Trial, is_doubted, may_use_torch, waits_for_gpu, why_not_again
from looseleaf.kernel_config import KernelConfig
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
    assert "the task `f`" in why_not_again([], [], found, threads_left=False, waiting="the task `f`")


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


def make_shell() -> Any:
    make: Any = InteractiveShell
    return make(config=Config(HistoryManager={"enabled": False}))


def test_variables_that_a_cell_does_not_name_come_back_however_large(
    tmp_path: Path, new_daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelSession, "has_gpus", True)
    monkeypatch.setattr("looseleaf.kernel.trial.may_use_torch", lambda *_: True)
    large = bytearray(LAZY_MOVE_BYTES_MAX + 1)
    namespace: dict[str, Any] = {"xs": [1], "large": large}
    session = KernelSession(namespace, lambda _name: False, KernelConfig(endpoint=str(tmp_path / "d.sock")))
    new_daemon()
    session.connect()
    trial = Trial(session, make_shell(), SimpleNamespace(comms={}), recipe(CPU, 0.8, names=("xs",)))
    assert trial.raises
    namespace["xs"].append(2)
    assert trial.take_back({}, lambda: None) == ""
    assert namespace["large"] is large and session.take_notes() == "" and is_stub(namespace["xs"])
    # A connection that was lost is no way back.
    trial = Trial(session, make_shell(), SimpleNamespace(comms={}), recipe(CPU, 0.8, names=("xs",)))
    monkeypatch.setattr(session, "commit", lambda _needed: session._link.close())
    assert "cannot be taken back: the connection" in trial.take_back({}, lambda: None)
    session.close()


@pytest.mark.parametrize("commits_all", [True, False])
def test_cell_is_prepared_only_if_all_is_in_the_store(monkeypatch: pytest.MonkeyPatch, commits_all: bool) -> None:
    monkeypatch.setattr("looseleaf.kernel.trial.may_use_torch", lambda *_: True)
    session, asked = SimpleNamespace(has_gpus=True, version=4), []

    def commit(needed: Any = None) -> None:
        asked.append(needed)
        session.manifest = SimpleNamespace(lazy_bytes=lambda: 0 if commits_all and needed is None else 7)

    session.commit = commit
    trial = Trial(session, make_shell(), SimpleNamespace(comms={}), recipe(CPU, 0.8, names=("xs",)))  # type: ignore[arg-type]
    assert asked == [("xs",), None] and trial.raises is commits_all


def run_trial(act: Any, found: Recipe, monkeypatch: pytest.MonkeyPatch, shell: Any = None) -> tuple[Trial, Any]:
    """The trial after `act` has run as its cell, prepared for being wrong; and why it cannot be taken back."""
    monkeypatch.setattr("looseleaf.kernel.trial.may_use_torch", lambda *_: True)
    session: Any = SimpleNamespace(
        has_gpus=True, version=4, commit=lambda _needed: None, manifest=SimpleNamespace(lazy_bytes=lambda: 0),
        tracker=None, threads=SimpleNamespace(may_write=lambda: False), roll_back=lambda _version: None,
    )  # fmt: skip
    trial = Trial(session, shell or make_shell(), SimpleNamespace(comms={}), found)

    async def cell() -> dict[str, Any]:
        try:
            act()
        except PreconditionFailed as error:
            return {"status": "error", "ename": type(error).__name__, "evalue": str(error)}
        return {"status": "ok"}

    async def run() -> str:
        reply = await trial.run(cell)
        return trial.take_back(reply, lambda: None)

    return trial, asyncio.run(run())


def test_cell_that_leaves_work_in_the_event_loop_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def later() -> None:
        await asyncio.sleep(3600)

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    for act, named in (
        (lambda: loop().create_task(later()), "task `test"), (lambda: loop().call_later(9, print), "call of `print`"),
        (lambda: loop().call_soon([0].append, 1), "append`"), (lambda: loop().call_later(9, print).cancel(), ""),
        (lambda: None, ""),
    ):  # fmt: skip
        why = run_trial(act, recipe(CPU, 0.8), monkeypatch)[1]
        assert (named in why) if named else not why, why


def test_work_of_the_loop_itself_and_of_before_is_not_the_cells() -> None:
    async def main() -> None:
        async def wait() -> None:
            await asyncio.sleep(3600)

        before = asyncio.create_task(wait())
        work = LoopWork(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert work.new() == "" and not before.done()
        await asyncio.create_task(asyncio.sleep(0))
        assert work.new() == ""

    asyncio.run(main())


def test_use_during_an_import_counts_if_it_ended_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (
        "from looseleaf.devices.touch import tell\nfrom looseleaf.errors import PreconditionFailed\n"
        "def refuse(what):\n    tell(what)\n    raise PreconditionFailed('CUDA_IN_CPU_CELL')\n"
    )
    (tmp_path / "needs_gpu.py").write_text(refusal + "refuse('Tensor.cuda')\n")
    (tmp_path / "tries_gpu.py").write_text(refusal + "try:\n    refuse('Tensor.cuda')\nexcept Exception:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, used in (("needs_gpu", "Tensor.cuda"), ("tries_gpu", "")):
        trial, why = run_trial(lambda module=module: __import__(module), recipe(CPU, 0.8), monkeypatch)
        assert trial.used == used and why == ""
    del sys.modules["tries_gpu"]


def test_person_keeps_their_own_way_to_show_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = make_shell()
    run_trial(lambda: None, recipe(CPU, 0.8), monkeypatch, shell)
    assert "showtraceback" not in vars(shell)
    for when in ("before", "in the cell"):
        own = lambda *args, **kwargs: None
        shell.showtraceback = own if when == "before" else shell.showtraceback
        run_trial(lambda own=own: setattr(shell, "showtraceback", own), recipe(CPU, 0.8), monkeypatch, shell)
        assert shell.showtraceback is own
        run_trial(lambda: None, recipe(CPU, 0.8), monkeypatch, shell)
        assert shell.showtraceback is own


def test_what_to_do_next_is_true_of_a_cell_that_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, said in ((recipe(CPU, 0.8), "next run gets"), (Recipe(label=CPU, confidence=0.8), "%%gpu")):
        trial, _why = run_trial(lambda: touch.tell("Tensor.cuda"), recipe(CPU, 0.8), monkeypatch)
        trial._recipe = found
        refused = trial.refusal("because", {"status": "ok"})
        assert refused is not None and said in refused.message


def test_comms_are_closed_only_when_the_cell_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _why = run_trial(lambda: None, recipe(CPU, 0.8), monkeypatch)
    closed: list[bool] = []
    monkeypatch.setattr(trial._comms, "close", lambda: closed.append(True))

    def lost(_version: int) -> None:
        raise Unavailable("NO_CLUSTER", "gone")

    trial._session.roll_back = lost  # type: ignore[method-assign, assignment]
    assert "gone" in trial.take_back({}, lambda: None) and closed == []


def test_interrupt_while_a_cell_is_taken_back_is_remembered() -> None:
    with interrupts_held() as came:
        assert not came()
        signal.raise_signal(signal.SIGINT)
        assert came()
