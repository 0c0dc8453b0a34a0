"""Where gradients live and what hooks see, alike on virtual and on real GPUs."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def _devices(values: Any) -> list[torch.device]:
    return [one.device for one in values if one is not None]


def _input() -> torch.Tensor:
    return torch.ones(3, 4, device="cuda", requires_grad=True)


def test_full_backward_hooks_see_gradients_on_the_device() -> None:
    seen: list[torch.device] = []
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1)).cuda()
    for layer in model:
        layer.register_full_backward_pre_hook(lambda module, given: seen.extend(_devices(given)))
        layer.register_full_backward_hook(lambda module, taken, given: seen.extend(_devices((*taken, *given))))
    model(_input()).sum().backward()
    assert len(seen) >= 9
    assert set(seen) == {CUDA}


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_older_module_hooks_and_global_ones_see_gradients_on_the_device() -> None:
    seen: list[torch.device] = []
    model = nn.Linear(4, 2).cuda()
    model.register_backward_hook(lambda module, taken, given: seen.extend(_devices((*taken, *given))))
    model(_input()).sum().backward()
    assert set(seen) == {CUDA}
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda module, taken, given: seen.extend(_devices((*taken, *given)))
    )
    nn.Linear(4, 2).cuda()(_input()).sum().backward()
    handle.remove()
    assert set(seen) == {CUDA}


def test_node_hooks_see_gradients_on_the_device() -> None:
    seen: list[torch.device] = []
    value = (_input() * 2).sum()
    value.grad_fn.register_prehook(lambda given: seen.extend(_devices(given)))
    value.grad_fn.register_hook(lambda taken, given: seen.extend(_devices((*taken, *given))))
    value.backward()
    assert seen == [CUDA] * 3
    # The idiom by which wrappers of models learn that a parameter's gradient is complete.
    leaf = _input()
    accumulator = leaf.expand_as(leaf).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda taken, given: seen.extend(_devices(given)))
    (leaf * 2).sum().backward()
    assert seen == [CUDA] * 4


def test_hooks_of_leaves_see_accumulated_gradients_on_the_device() -> None:
    seen: list[torch.device] = []
    one, two = _input(), _input()
    one.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.device))
    torch.autograd.graph.register_multi_grad_hook([one, two], lambda grads: seen.extend(_devices(grads)))
    (one * two).sum().backward()
    assert seen == [CUDA] * 3


def test_tensor_hook_may_change_the_gradient_but_not_its_device() -> None:
    leaf = _input()
    handle = leaf.register_hook(lambda grad: grad * 3)
    (leaf * 2).sum().backward()
    assert leaf.grad.unique().tolist() == [6]
    handle.remove()
    leaf.register_hook(lambda grad: torch.ones(3, 4))
    with pytest.raises(RuntimeError, match="has changed the type of value"):
        (leaf * 2).sum().backward()


def test_hook_that_computes_with_constants_of_both_kinds() -> None:
    leaf, constant, factor = _input(), torch.full((3, 4), 2.0, device="cuda"), torch.tensor(5.0)
    leaf.register_hook(lambda grad: grad * constant * factor)
    leaf.sum().backward()
    assert leaf.grad.unique().tolist() == [10]
    assert leaf.grad.device == CUDA


def test_retained_gradients_are_where_their_tensors_are() -> None:
    host = torch.ones(2, requires_grad=True)
    moved = host.to("cuda")
    back = (moved * 3).cpu()
    for one in (moved, back):
        one.retain_grad()
    (back * 2).sum().backward()
    assert [str(one.grad.device) for one in (host, moved, back)] == ["cpu", "cuda:0", "cpu"]
    assert host.grad.numpy().tolist() == [6, 6]


def test_gradients_accumulate_are_zeroed_and_released_on_the_device() -> None:
    model = nn.Linear(4, 2).cuda()
    for _ in range(2):
        model(_input()).sum().backward()
    assert model.bias.grad.tolist() == [6, 6]
    model.zero_grad(set_to_none=False)
    assert model.bias.grad.tolist() == [0, 0]
    assert model.bias.grad.device == CUDA
    model.zero_grad()
    assert model.bias.grad is None
    model.bias.grad = torch.ones(2, device="cuda")
    model.cpu()
    assert model.bias.grad.device.type == "cpu"


def test_module_moves_with_its_gradients() -> None:
    model = nn.Linear(4, 2)
    model(torch.ones(1, 4)).sum().backward()
    model.cuda()
    assert model.weight.grad.device == CUDA
    model.half()
    assert model.weight.grad.dtype == torch.float16
    assert model.weight.grad.device == CUDA


def test_higher_derivatives_and_gradients_of_inputs_are_on_the_device() -> None:
    x = _input()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.device, second.device) == (CUDA, CUDA)
    assert second.unique().tolist() == [6]
    unused = torch.ones(1, device="cuda", requires_grad=True)
    assert torch.autograd.grad(x.sum(), [x, unused], allow_unused=True)[1] is None
    assert torch.autograd.grad((x * 2).sum(), x, torch.tensor(1.0))[0].device == CUDA
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got cpu"):
        torch.autograd.grad(x * 2, x, torch.ones(3, 4))


def test_saved_tensors_offloaded_to_the_host_come_back() -> None:
    x, kept = _input(), []
    with save_on_cpu(pin_memory=True):
        out = (x * x).sum()
    out.backward()
    assert x.grad.device == CUDA
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.device), t)[1], lambda t: t)
    with hooks:
        (x * x).sum().backward()
    assert set(kept) == {CUDA}


def test_custom_function_with_several_inputs_and_no_gradient_for_some() -> None:
    seen = []

    class Join(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, flag):
            ctx.save_for_backward(a)
            ctx.mark_non_differentiable(mask := a > 0)
            return a + b, mask

        @staticmethod
        def backward(ctx, grad, _):
            seen.append((grad.device, ctx.saved_tensors[0].device, ctx.needs_input_grad))
            return grad, grad.clone(), None

    a, b = _input(), _input()
    total, mask = Join.apply(a, b, True)
    assert total.device == mask.device == CUDA
    total.sum().backward()
    assert seen == [(CUDA, CUDA, (True, True, False))]
    assert a.grad.device == b.grad.device == CUDA


def test_custom_function_written_for_transforms_runs() -> None:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

    x = _input()
    Square.apply(x).sum().backward()
    assert x.grad.unique().tolist() == [2]
    assert torch.func.vmap(torch.func.grad(lambda row: Square.apply(row).sum()))(x.detach()).device == CUDA


def test_detach_no_grad_and_inference_keep_the_device() -> None:
    x = _input()
    with torch.no_grad():
        assert (x * 2).device == CUDA
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        inferred = x * 2
    assert inferred.device == CUDA
    assert inferred.is_inference()
    assert inferred.cpu().device.type == "cpu"
    assert x.detach().requires_grad_().device == CUDA
    assert x.data.device == CUDA


def test_gradient_of_sparse_embedding_is_sparse_on_the_device() -> None:
    layer = nn.Embedding(5, 2, sparse=True).cuda()
    layer(torch.tensor([1, 3], device="cuda")).sum().backward()
    assert layer.weight.grad.is_sparse
    assert layer.weight.grad.device == layer.weight.grad.coalesce().values().device == CUDA
    torch.optim.SparseAdam(layer.parameters()).step()
    assert layer.weight.device == CUDA


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adadelta, torch.optim.Adafactor, torch.optim.Adagrad, torch.optim.Adam, torch.optim.Adamax,
        torch.optim.AdamW, torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop,
        torch.optim.Rprop, torch.optim.SGD,
    ],
    ids=lambda make: make.__name__,
)
def test_optimizer_steps_on_the_device_and_its_state_loads(make: type[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = make([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()
    assert weight.max().item() < 1
    again = make([weight], lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    for state in (optimizer.state[weight], again.state[weight]):
        assert {str(value.device) for value in state.values() if torch.is_tensor(value) and value.dim()} <= {"cuda:0"}


def test_graph_of_a_dropped_loss_frees_its_memory() -> None:
    weight = nn.Parameter(torch.ones(1 << 18, device="cuda"))
    gc.collect()
    before = torch.cuda.memory_allocated()
    loss = (weight * weight).sum()
    assert torch.cuda.memory_allocated() > before
    del loss
    gc.collect()
    assert torch.cuda.memory_allocated() == before
