"""What mixing devices says and what it allows, alike on virtual and on real GPUs."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)
TWO = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def checked(argument: str, method: str, on: str = "cpu", others: str = "cuda:0") -> str:
    """The pattern of an operator's own check, in both of torch's wordings."""
    newer = f"but got {argument} is on {on}, different from other tensors on {others} (when checking argument in "
    newer += "method "
    older = f"(when checking argument for argument {argument} in method "
    return f"Expected all tensors to be on the same device, .*({re.escape(newer)}|{re.escape(older)}){method}"


def _labels() -> torch.Tensor:
    return torch.tensor([0, 1, 0, 1])


_REFUSED: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], str]] = {
    # x is on the device, h on the host, both (4, 4)
    "add": (lambda x, h: x + h, TWO),
    "radd": (lambda x, h: h + x, TWO),
    "in place": (lambda x, h: x.mul_(h), TWO),
    "host in place": (lambda x, h: h.mul_(x), TWO),
    "host with device scalar": (lambda x, h: h + x[0, 0], TWO),
    "host scalar in place": (lambda x, h: h[0, 0].add_(x[0, 0]), TWO),
    "total on the host": (lambda x, h: h.sum().__iadd__(x.sum()), TWO),
    "compare": (lambda x, h: x == h, TWO),
    "where": (lambda x, h: torch.where(h > 0.5, x, x), TWO),
    "out": (lambda x, h: torch.add(x, x, out=h), TWO),
    "lerp": (lambda x, h: torch.lerp(x, h, 0.5), TWO),
    "mse_loss": (lambda x, h: F.mse_loss(x, h), TWO),
    "binary_cross_entropy": (lambda x, h: F.binary_cross_entropy(x, h), TWO),
    "with logits": (lambda x, h: F.binary_cross_entropy_with_logits(x, h), TWO),
    "kl_div": (lambda x, h: F.kl_div(x, h), TWO),
    "matmul": (lambda x, h: x @ h, checked("mat2", "wrapper_CUDA_mm")),
    "host matmul": (lambda x, h: h @ x, checked("mat2", "wrapper_CUDA_mm", "cuda:0", "cpu")),
    "matrix vector": (lambda x, h: x @ h[0], checked("mat", "wrapper_CUDA_addmv_", "cuda:0", "cpu")),
    "batched": (lambda x, h: torch.bmm(x[None], h[None]), checked("mat2", "wrapper_CUDA_bmm")),
    "addmm": (lambda x, h: torch.addmm(x, x, h), checked("mat2", "wrapper_CUDA_addmm")),
    "dot": (lambda x, h: x[0].dot(h[0]), checked("tensor", "wrapper_CUDA__dot")),
    "linear, host input": (lambda x, h: nn.Linear(4, 4).cuda()(h), checked("mat1", "wrapper_CUDA_addmm")),
    "linear, host weights": (
        lambda x, h: nn.Linear(4, 4)(x), checked("mat1", "wrapper_CUDA_addmm", "cuda:0", "cpu"),
    ),
    "sequential": (
        lambda x, h: nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()(h), checked("mat1", "wrapper_CUDA_addmm"),
    ),
    "embedding": (lambda x, h: nn.Embedding(4, 2).cuda()(_labels()), checked("index", "wrapper_CUDA__index_select")),
    "embedding, host weights": (
        lambda x, h: nn.Embedding(4, 2)(_labels().cuda()),
        checked("index", "wrapper_CUDA__index_select", "cuda:0", "cpu"),
    ),
    "cross_entropy": (lambda x, h: F.cross_entropy(x, _labels()), checked("target", "wrapper_CUDA_nll_loss_forward")),
    "class weights": (
        lambda x, h: nn.CrossEntropyLoss(weight=h[0])(x, _labels().cuda()),
        checked("weight", "wrapper_CUDA_nll_loss_forward"),
    ),
    "nll_loss": (lambda x, h: F.nll_loss(x, _labels()), checked("target", "wrapper_CUDA_nll_loss_forward")),
    "layer_norm": (lambda x, h: nn.LayerNorm(4)(x), checked("weight", "wrapper_CUDA__native_layer_norm")),
    "batch_norm": (lambda x, h: nn.BatchNorm1d(4)(x), checked("weight", "wrapper_CUDA_.*batch_norm")),
    "cat": (lambda x, h: torch.cat([x, h]), checked("tensors", "wrapper_CUDA_cat")),
    "cat of a scalar's row": (lambda x, h: torch.cat([x[0], torch.ones(1)]), checked("tensors", "wrapper_CUDA_cat")),
    "stack": (lambda x, h: torch.stack([x, h]), checked("tensors", "wrapper_CUDA_cat")),
    "gather": (lambda x, h: x.gather(0, h.long()), checked("index", "wrapper_CUDA_gather")),
    "index_select": (lambda x, h: x.index_select(0, _labels()), checked("index", "wrapper_CUDA__index_select")),
    "clamp by a host scalar": (
        lambda x, h: x.clamp(min=h[0, 0]), checked("min", "wrapper_CUDA_clamp_Tensor"),
    ),
    "isin a host scalar": (lambda x, h: torch.isin(x, h[0, 0]), checked("test_elements", "wrapper_CUDA_isin")),
    "take": (lambda x, h: x.take(_labels()), checked("index", "wrapper_CUDA__take")),
    "masked_select": (lambda x, h: x.masked_select(h > 0.5), checked("mask", "wrapper_CUDA__masked_select")),
    "masked_fill": (
        lambda x, h: x.masked_fill(h > 0.5, 0.0),
        "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
    ),
    "scatter_add": (lambda x, h: x.scatter_add(0, h.long().cuda(), h), checked("src", "wrapper_CUDA_scatter_add")),
    "conv, host input": (
        lambda x, h: nn.Conv2d(1, 1, 1).cuda()(h[None, None]),
        r"Input type \(torch.FloatTensor\) and weight type \(torch.cuda.FloatTensor\) should be the same",
    ),
    "conv, host weights": (
        lambda x, h: nn.Conv2d(1, 1, 1)(x[None, None]),
        r"Input type \(torch.cuda.FloatTensor\) and weight type \(torch.FloatTensor\) should be the same",
    ),
    "conv, host bias": (
        lambda x, h: F.conv2d(x[None, None], x[None, None], torch.ones(1)),
        r"Input type \(torch.cuda.FloatTensor\) and bias type \(torch.FloatTensor\) should be the same",
    ),
    "lstm": (
        lambda x, h: nn.LSTM(4, 2).cuda()(h),
        "Input and parameter tensors .* found input tensor at cpu and parameter tensor at cuda:0",
    ),
    "lstm, host state": (
        lambda x, h: nn.LSTM(4, 2).cuda()(x, (torch.zeros(1, 2), torch.zeros(1, 2))),
        "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden tensor at cpu",
    ),
    "attention": (
        lambda x, h: F.scaled_dot_product_attention(x[None], h[None], x[None]),
        "Expected query, key, and value to have the same device type, but got query.device: cuda:0 key.device: cpu",
    ),
    "multihead": (
        lambda x, h: nn.MultiheadAttention(4, 1).cuda()(h, h, h), "Expected all tensors to be on the same device",
    ),
    "grid_sample": (
        lambda x, h: F.grid_sample(x[None, None], h.view(1, 2, 4, 2)),
        "expected input and grid to be on same device, but input is on cuda:0 and grid is on cpu",
    ),
    "meshgrid": (lambda x, h: torch.meshgrid(x[0], h[0]), "expects all tensors to have the same device"),
    "quantile": (lambda x, h: x.quantile(h[0, :1]), "q tensor must be on the same device as the input tensor"),
    "device index": (lambda x, h: h[_labels().cuda()], r"indices should be either on .*cpu.* same device .*\(cpu\)"),
    "device mask": (lambda x, h: h[x > 0.5], r"indices should be either on .*cpu.* same device .*\(cpu\)"),
    "assigned by index": (lambda x, h: x.__setitem__(torch.tensor([0, 1]), h[:2]), TWO),
    "assigned by mask": (lambda x, h: x.__setitem__(x > -1, h.flatten()), TWO),
    "assigned to the host by index": (lambda x, h: h.__setitem__(torch.tensor([0, 1]), x[:2]), TWO),
    "set_": (
        lambda x, h: x.set_(h), "Attempted to set the storage of a tensor on device .*cuda:0.* different device .*cpu",
    ),
    "gradient": (
        lambda x, h: (x.clone().requires_grad_() * 2).backward(h),
        "invalid gradient at index 0 - expected device cuda:0 but got cpu",
    ),
    "grad": (lambda x, h: setattr(x, "grad", h), "assigned grad has data located on a different device"),
    "script": (
        lambda x, h: torch.jit.trace(nn.Linear(4, 4).cuda(), x)(h), "Expected all tensors to be on the same device",
    ),
    "vmap": (lambda x, h: torch.vmap(torch.add)(x, h), TWO),
}


@pytest.mark.parametrize("name", _REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_mixed_call_raises_with_cuda_s_text(name: str) -> None:
    call, pattern = _REFUSED[name]
    with pytest.raises((RuntimeError, IndexError), match=re.escape(pattern) if pattern is TWO else pattern):
        call(torch.rand(4, 4, device="cuda"), torch.rand(4, 4))


_TAKEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    # s is a host tensor without dimensions
    "times": lambda x, s: x * s,
    "reflected": lambda x, s: s / x,
    "in place": lambda x, s: x.add_(s),
    "power": lambda x, s: x**s,
    "compare": lambda x, s: x > s,
    "clamp by a number": lambda x, s: x.clamp(min=s.item()),
    "masked_fill": lambda x, s: x.masked_fill(x > 0.5, s),
    "where": lambda x, s: torch.where(x > 0.5, x, s),
    "where of two": lambda x, s: torch.where(x > 0.5, s, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, s),
    "with a device scalar": lambda x, s: x[0, 0] + s,
    "host index": lambda x, s: x[torch.tensor([0, 1])],
    "host mask": lambda x, s: x[torch.tensor([True, False, True, False])],
    "assigned scalar": lambda x, s: (x.__setitem__(torch.tensor([0]), s), x)[1],
    "assigned row": lambda x, s: (x.__setitem__(0, torch.ones(4)), x)[1],
    "copy_": lambda x, s: x.copy_(torch.ones(4, 4)),
    "foreach rows": lambda x, s: torch._foreach_add([x, torch.ones(2)], [x, torch.ones(2)])[0],
    "pad_sequence": lambda x, s: nn.utils.rnn.pad_sequence([x, torch.ones(2, 4)]),
    "repeat_interleave": lambda x, s: x.repeat_interleave(2, 0),
    "expand_as": lambda x, s: x[:1].expand_as(torch.ones(4, 4)),
    "type_as": lambda x, s: torch.ones(2).type_as(x),
    "sparse indices": lambda x, s: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,), device="cuda"),
}


@pytest.mark.parametrize("name", _TAKEN)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_call_that_cuda_takes_beside_host_tensors_works(name: str) -> None:
    assert _TAKEN[name](torch.rand(4, 4, device="cuda"), torch.tensor(2.0)).device == CUDA


def test_foreach_rows_keep_their_own_devices() -> None:
    on_device, on_host = torch._foreach_mul([torch.ones(2, device="cuda"), torch.ones(2)], 2.0)
    assert (on_device.device, on_host.device.type) == (CUDA, "cpu")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._foreach_add([torch.ones(2, device="cuda")], [torch.ones(2)])


def test_host_takes_numbers_of_the_device() -> None:
    number = torch.tensor(2.0, device="cuda")
    host = torch.zeros(2, 2)
    for filled in (
        host.clone().fill_(number),
        host.masked_fill(torch.tensor([True, False]), number),
        host.index_fill(1, torch.tensor([0]), number),
        host.clone().copy_(number),
    ):
        assert filled.device.type == "cpu"
        assert filled[0, 0].item() == 2
    assert (torch.tensor(1.0) + number).device == CUDA
    number += torch.tensor(1.0)
    assert number.device == CUDA


def test_host_takes_values_of_the_device_by_plain_index_only() -> None:
    host = torch.zeros(2, 2)
    host[0] = torch.ones(2, device="cuda")
    host[1, 1] = torch.tensor(3.0, device="cuda")
    assert host.tolist() == [[1, 1], [0, 3]]
    assert host.device.type == "cpu"
    assert host.numpy().sum() == 5


def test_refused_call_leaves_its_tensors_alone() -> None:
    x, h = torch.ones(2, device="cuda"), torch.ones(2)
    for call in (lambda: x.add_(h), lambda: h.add_(x), lambda: torch.add(x, x, out=h)):
        with pytest.raises(RuntimeError):
            call()
    assert (x.tolist(), h.tolist(), x.device, h.device.type) == ([1, 1], [1, 1], CUDA, "cpu")
