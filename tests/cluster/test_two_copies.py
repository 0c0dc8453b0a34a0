"""What one holder changes, every way to it shows in the other: kernel and workers hold copies of one state."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

SETUP = """
import functools, torch, numpy as np, pandas as pd, ipywidgets as widgets
from torch import nn
from matplotlib.figure import Figure

class Trainer:
    def __init__(self, model):
        self.model = model
    def read(self):
        return self.model.weight

class Config:
    net = None
    rates = []

def make(net):
    def read():
        return net.weight
    return read

model = nn.Linear(2, 2, bias=False)
trainer = Trainer(model)
models = [model, model.weight]
optimizers = {"sgd": torch.optim.SGD(model.parameters(), lr=0.1)}
closure = make(model)
Config.net = model
def with_default(net=model):
    return net.weight
bound = trainer.read
part = functools.partial(with_default, model)
base = torch.zeros(100_000); view = base[10:20]
flat = np.zeros(100_000); window = flat[5:15]; wrapped = torch.from_numpy(flat)
items = [0]; table = pd.DataFrame({"lists": [items, [1]]})
figure = Figure(); line, = figure.subplots().plot([0, 1], [0, 0])
button = widgets.Button(); button.figure = figure
model
"""
CHANGE = """
with torch.no_grad():
    model.weight.fill_({v})
    base[12] = {v}
flat[6] = {v}
items[0] = {v}
line.set_ydata([{v}, {v}])
Config.rates.append({v})
"""
# Each way to what was changed, and what must be one object with what.
VALUES = [
    "float(model.weight[0, 0])", "float(trainer.model.weight[0, 0])", "float(Out[{n}].weight[0, 0])",
    "float(_{n}.weight[1, 1])", "float(models[0].weight[0, 0])", "float(models[1][0, 0])",
    "float(optimizers['sgd'].param_groups[0]['params'][0][0, 1])", "float(closure()[0, 0])",
    "float(Config.net.weight[0, 0])", "Config.rates[-1]", "float(with_default()[0, 0])", "float(bound()[0, 0])",
    "float(part()[0, 0])", "float(base[12])", "float(view[2])", "flat[6]", "window[1]", "float(wrapped[6])",
    "items[0]", "table.lists[0][0]", "line.get_ydata()[0]", "button.figure.axes[0].lines[0].get_ydata()[1]",
    "figure.axes[0].lines[0].get_ydata()[0]",
]  # fmt: skip
SAME = [
    "trainer.model is model", "Out[{n}] is model and _{n} is model", "models[0] is model and models[1] is model.weight",
    "optimizers['sgd'].param_groups[0]['params'][0] is model.weight", "closure() is model.weight",
    "Config.net is model", "with_default() is model.weight", "bound.__self__ is trainer", "part.args[0] is model",
    "table.lists[0] is items", "button.figure is figure and figure.axes[0].lines[0] is line",
    "view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()", "window.base is flat",
    "wrapped.data_ptr() == flat.ctypes.data",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that keeps no warm worker, so that each GPU cell runs in a process of its own."""
    with LocalCluster.start(
        data=tmp_path_factory.mktemp("cold") / "d", device="emulated", gpus=1, emulated_delays=False, keep_warm_s=0.0
    ) as found:
        yield found


class Copies:
    """A notebook and the ways through it."""

    def __init__(self, notebook: Any) -> None:
        self.notebook = notebook
        notebook.ok(SETUP)
        self.number = int(notebook.ok("max(Out)").value)

    def change(self, mark: str, value: int) -> str:
        return str(self.notebook.ok(f"{mark}\n" + CHANGE.format(v=value)).report["worker"])

    def check(self, mark: str, value: int, values: list[str] = VALUES, same: list[str] = SAME) -> str:
        """In one cell; returns the worker."""
        shown = [expression.format(n=self.number) for expression in (*values, *same)]
        outcome = self.notebook.ok(f"{mark}\n[{', '.join(shown)}]")
        told = dict(zip(shown, ast.literal_eval(outcome.value.replace("np.float64", "")), strict=True))
        wanted = dict.fromkeys(shown[: len(values)], value) | dict.fromkeys(shown[len(values) :], True)
        assert told == wanted
        return str(outcome.report["worker"])

    def check_each(self, mark: str, value: int, expressions: list[str]) -> None:
        """Each way in a cell of its own, which loads nothing else."""
        for expression in expressions:
            self.check(mark, value, [expression], [])


@pytest.fixture
def copies(new_notebook: Callable[..., Any]) -> Copies:
    return Copies(new_notebook())


def test_worker_sees_what_the_kernel_changed(copies: Copies) -> None:
    copies.check("%%gpu", 0, ["items[0]"], SAME)
    copies.change("%%cpu", 1)
    copies.check_each("%%gpu", 1, [VALUES[1], VALUES[14], VALUES[21]])
    copies.check("%%gpu", 1)


def test_kernel_sees_what_a_worker_changed(copies: Copies) -> None:
    copies.change("%%gpu", 2)
    copies.check_each("%%cpu", 2, VALUES)
    copies.check("%%cpu", 2)
    copies.change("%%gpu", 3)
    copies.check("%%cpu", 3)


def test_worker_sees_what_another_worker_changed(copies: Copies) -> None:
    changer = copies.change("%%gpu", 4)
    assert copies.check("%%gpu", 4) != changer
    copies.check_each("%%gpu", 4, [VALUES[7], VALUES[16]])
    copies.check("%%cpu", 4)
