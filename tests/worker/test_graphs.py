"""An autograd graph ends with its cell, whether or not the next one finds its worker warm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MakeWorker = Callable[..., Any]
MADE = """
import torch
w = torch.ones(2, requires_grad=True)
loss = (w * 2).sum()
parts = {"h": w * 3}
class Model(torch.nn.Module):
    def forward(self, x):
        self.seen = x * w
        return self.seen.sum()
model = Model()
"""


@pytest.fixture(params=["warm", "cold"])
def run(request: pytest.FixtureRequest, make_worker: MakeWorker) -> Callable[[str], Any]:
    """Runs a cell after the one that MADE the tensors, on its worker or on another."""
    first = make_worker()
    assert first.run(MADE)["status"] == "ok"
    if request.param == "warm":
        worker = first
    else:
        worker = make_worker(first.store, prepare=False)
        worker.prepare(["torch", "w", "loss", "parts", "model"])
    count = iter(range(2, 99))
    return lambda source: worker.run(source, next(count))


@pytest.mark.parametrize(("cell", "name"), [
    ("loss.backward()", "loss"),
    ("(loss * 2).backward()", "loss"),
    ("parts['h'].sum().backward()", "parts['h']"),
])  # fmt: skip
def test_backward_through_an_earlier_cells_tensor_is_refused_by_name(run: Any, cell: str, name: str) -> None:
    reply = run(cell)
    assert reply["ename"] == "PreconditionFailed" and "GRAPH_NOT_CARRIED" in reply["evalue"]
    assert f"`{name}`" in reply["evalue"]
    assert run("assert w.grad is None")["status"] == "ok"


def test_gradients_with_respect_to_what_lies_behind_an_earlier_cells_tensor_are_refused(run: Any) -> None:
    # Elsewhere torch itself says that the tensors have nothing to do with each other.
    assert run("torch.autograd.grad(parts['h'].sum(), w)")["status"] == "error"


@pytest.mark.parametrize("cell", [
    "assert loss.item() == 4 and loss.grad_fn is not None and not loss.is_leaf",
    "again = (w * 2).sum(); again.backward(); assert w.grad.tolist() == [2.0, 2.0]",
    "assert torch.autograd.grad((loss * 5).sum(), loss)[0].item() == 5",
    "model(torch.ones(2)).backward(); assert w.grad.tolist() == [1.0, 1.0]",
])  # fmt: skip
def test_everything_else_goes_on(run: Any, cell: str) -> None:
    reply = run(cell)
    assert reply["status"] == "ok", reply


def test_generator_that_lives_on_in_its_worker_keeps_its_own_graphs(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.run("""
import torch
w = torch.ones(1, requires_grad=True)
def steps():
    for factor in (2.0, 3.0):
        hidden = (w * factor).sum()
        yield
        hidden.backward()
training = steps()
next(training)
""")
    reply = worker.run("next(training)\nassert w.grad.item() == 2.0", 2)
    assert reply["status"] == "ok", reply
