"""What a session learns of its cells, and what that makes of their labels."""

from __future__ import annotations

import pytest

from looseleaf.recipe import CellRun, DeviceLabel, ExecutionLog, NameFacts, Observation, Recipe, derive_recipe
from looseleaf.recipe.history_line import FORGET_ALL
from looseleaf.recipe.label import CERTAIN, WAITS, Label
from looseleaf.recipe.learning import guess_of, learned_label
from looseleaf.recipe.lessons import LESSONS_MAX, RUNS_REMEMBERED, Lesson, Lessons
from looseleaf.recipe.name_facts import UNKNOWN_NAME, Payload

SETUP = "import torch, local_helper\nt = torch.ones(3)\nclass Cfg:\n    pass\ncfg = Cfg()"
CPU, GPU = DeviceLabel.CPU, DeviceLabel.GPU


class Session:
    """A log to which runs are added with what they showed."""

    def __init__(self) -> None:
        self.log = ExecutionLog()
        self.run(SETUP)

    def recipe(self, source: str) -> Recipe:
        recorded = {"t": NameFacts("instance", "Tensor", "torch")}
        facts = {name: recorded.get(name, UNKNOWN_NAME) for name in self.log.definitions}
        return derive_recipe(source, cell_id="c", log=self.log, headers=facts, version=1)

    def run(self, source: str, *touched: bool) -> None:
        for each in touched or (None,):
            seen = None if each is None else Observation(self.recipe(source).guess, each, 5, 0.1)
            self.log.record(CellRun(self.log.length + 1, "c", source, ok=True, observed=seen))


def test_cell_whose_calls_cannot_be_followed_is_uncertain() -> None:
    session = Session()
    hidden = session.recipe("local_helper.train(t)")
    assert hidden.label is CPU and hidden.confidence < CERTAIN and "local_helper" in hidden.reason
    for found in ("t.to(cfg.where)", "getattr(t, 'cu' + 'da')()", "def f(n):\n    return getattr(t, n)()\nf('cuda')"):
        assert session.recipe(found).confidence < CERTAIN, found
    assert session.recipe("getattr(t, 'shape')").confidence >= CERTAIN
    for plain in ("t.sum()", "print(local_helper)", "x = [1]", "len(local_helper.NAMES)"):
        assert session.recipe(plain).confidence >= CERTAIN, plain


def test_reading_a_device_value_by_the_notebooks_own_code_is_doubted() -> None:
    def read(value: NameFacts) -> Recipe:
        return derive_recipe("print(v)", cell_id="", log=ExecutionLog(), headers={"v": value}, version=1)

    on_gpu = {1: Payload("cuda:0", 4)}
    assert read(NameFacts("instance", "Tensor", "torch", payloads=on_gpu)).confidence >= CERTAIN
    own = read(NameFacts("instance", "Report", "__main__", payloads=on_gpu))
    assert own.label is CPU and own.confidence < CERTAIN


def test_most_that_such_a_cell_held_on_gpus_is_known_before_its_next_run() -> None:
    session = Session()
    assert session.recipe("local_helper.train(t)").peak_bytes == 0
    session.run("local_helper.train(t)", True)
    assert session.recipe("local_helper.train(t)").peak_bytes == 5
    assert session.recipe("local_helper.train(t) ").peak_bytes == 0


def test_cpu_cell_that_touched_is_a_gpu_cell_next_time() -> None:
    session = Session()
    session.run("local_helper.train(t)", True)
    found = session.recipe("local_helper.train(t)")
    assert found.label is GPU and found.confidence > CERTAIN and "It was learned that" in found.reason
    # Another cell is another cell, and a person's word stands above any lesson.
    assert session.recipe("local_helper.train(t )").label is CPU
    assert session.recipe("%%cpu\nlocal_helper.train(t)").label is CPU


def test_cpu_cell_that_did_not_touch_is_certain_next_time() -> None:
    session = Session()
    session.run("local_helper.train(t)", False)
    found = session.recipe("local_helper.train(t)")
    assert found.label is CPU and found.confidence >= CERTAIN and "It was learned that" in found.reason


def test_gpu_cell_that_did_not_touch_is_tried_on_the_cpu_next_time() -> None:
    session = Session()
    assert session.recipe("t.to(cfg.device)").confidence < WAITS
    session.run("t.to(cfg.device)", False)
    found = session.recipe("t.to(cfg.device)")
    assert found.label is CPU and WAITS < found.confidence < CERTAIN
    session.run("t.to(cfg.device)", True)
    assert session.recipe("t.to(cfg.device)").label is GPU


def test_one_run_that_touched_outweighs_others_until_it_is_forgotten() -> None:
    session = Session()
    source = "local_helper.train(t)"
    session.run(source, True, *[False] * (RUNS_REMEMBERED - 1))
    assert session.recipe(source).label is GPU
    session.run(source, False)
    assert session.recipe(source).label is CPU


def test_lesson_is_of_the_code_that_the_cell_reaches() -> None:
    session = Session()
    first, second = "def go():\n    return local_helper.a()", "def go():\n    return local_helper.b()"
    session.run(first)
    session.run("go()", True)
    assert session.recipe("go()").label is GPU
    session.run(second)
    assert session.recipe("go()").label is CPU
    session.run(first)
    assert session.recipe("go()").label is GPU


def test_lesson_survives_a_checkout() -> None:
    session = Session()
    session.run("local_helper.train(t)", True)
    session.run(FORGET_ALL)
    session.run(SETUP)
    assert session.recipe("local_helper.train(t)").label is GPU


@pytest.mark.parametrize(
    "label",
    [
        Label(GPU, "it needs `x` with 1 GiB on the GPU", 0.99),
        Label(GPU, "a shell line starts GPU work", 0.8),
        Label(GPU, "%%gpu asks for the GPU.", 1.0, may_learn_cpu=True),
        Label(CPU, "%%cpu asks for the CPU.", 1.0),
    ],
)
def test_label_that_no_run_refutes_stays(label: Label) -> None:
    for touched in (False, True):
        assert learned_label(label, Lesson((touched,), 0, 0.0)).label is label.label


def test_gpu_libraries_that_torch_does_not_see_are_not_learned_away() -> None:
    session = Session()
    session.run("import jax\nimport jax.numpy as jnp")
    session.run("jnp.ones(3).sum()", False)
    assert session.recipe("jnp.ones(3).sum()").label is GPU


def test_lessons_are_bounded_and_keep_peak_and_duration() -> None:
    lessons = Lessons()
    lessons.observe(Observation("", True))
    for number in range(LESSONS_MAX + 1):
        lessons.observe(Observation(f"g{number}", True, 7, 1.0))
    lessons.observe(Observation("g5", False, 3, 2.0))
    assert len(lessons) == LESSONS_MAX and lessons.of("g0") is None
    assert lessons.of("g5") == Lesson((True, False), 7, 2.0)


def test_guess_differs_by_text_label_reason_and_code() -> None:
    label = Label(CPU, "r", 0.9)
    guesses = {guess_of("a", label, ()), guess_of("b", label, ()), guess_of("a", Label(GPU, "r", 0.9), ()),
               guess_of("a", Label(GPU, "s", 0.9), ())}  # fmt: skip
    assert len(guesses) == 4 and guess_of("a", Label(CPU, "other", 0.8), ()) in guesses
