"""Autocast, gradient scaling and the smaller dtypes, alike on virtual and on real GPUs."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

pytestmark = [pytest.mark.usefixtures("device_kind"), pytest.mark.filterwarnings("ignore")]

CUDA = torch.device("cuda", 0)
HALF, FLOAT, BF16 = torch.float16, torch.float32, torch.bfloat16

# x and y are float32 (4, 4), h is float16.
_LOW: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda x, h: x @ x,
    "mm": lambda x, h: torch.mm(x, h.float()),
    "mixed": lambda x, h: x @ h,
    "bmm": lambda x, h: torch.bmm(x[None], x[None]),
    "addmm": lambda x, h: torch.addmm(x, x, x),
    "baddbmm": lambda x, h: torch.baddbmm(x[None], x[None], x[None]),
    "mv": lambda x, h: x @ x[0],
    "einsum": lambda x, h: torch.einsum("ij,jk->ik", x, x),
    "linear": lambda x, h: F.linear(x, x),
    "layer": lambda x, h: nn.Linear(4, 2).cuda()(x),
    "conv1d": lambda x, h: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x, h: F.conv2d(x[None, None], x[None, None]),
    "conv_transpose2d": lambda x, h: F.conv_transpose2d(x[None, None], x[None, None]),
    "prelu": lambda x, h: F.prelu(x, torch.ones(4, device="cuda")),
    "attention": lambda x, h: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "lstm": lambda x, h: nn.LSTM(4, 2).cuda()(x)[0],
    "gru": lambda x, h: nn.GRU(4, 2, bidirectional=True).cuda()(x)[0],
    "multi_dot": lambda x, h: torch.linalg.multi_dot([x, x, x]),
}
_FLOAT: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x, h: h.softmax(-1),
    "log_softmax": lambda x, h: F.log_softmax(h, -1),
    "exp": lambda x, h: h.exp(),
    "log": lambda x, h: h.log(),
    "pow": lambda x, h: h**2,
    "rpow": lambda x, h: 2**h,
    "reciprocal": lambda x, h: h.reciprocal(),
    "rsqrt": lambda x, h: h.rsqrt(),
    "sum": lambda x, h: h.sum(),
    "prod": lambda x, h: h.prod(),
    "cumsum": lambda x, h: h.cumsum(0),
    "norm": lambda x, h: h.norm(),
    "vector_norm": lambda x, h: torch.linalg.vector_norm(h),
    "logsumexp": lambda x, h: h.logsumexp(0),
    "layer_norm": lambda x, h: F.layer_norm(h, (4,)),
    "rms_norm": lambda x, h: F.rms_norm(h, (4,)),
    "group_norm": lambda x, h: F.group_norm(h, 2),
    "mse_loss": lambda x, h: F.mse_loss(h, h),
    "l1_loss": lambda x, h: F.l1_loss(h, h),
    "cross_entropy": lambda x, h: F.cross_entropy(h, torch.arange(4, device="cuda")),
    "with logits": lambda x, h: F.binary_cross_entropy_with_logits(h, h),
    "cosine_similarity": lambda x, h: F.cosine_similarity(h, h),
    "cdist": lambda x, h: torch.cdist(h, h),
    "interpolate": lambda x, h: F.interpolate(h[None, None], scale_factor=2),
    "softplus": lambda x, h: F.softplus(h),
    "float stays": lambda x, h: x + x,
    "promoted": lambda x, h: x + h,
    "cat": lambda x, h: torch.cat([x, h]),
    "addcmul": lambda x, h: torch.addcmul(h, x, h),
    "dot": lambda x, h: torch.dot(x[0], h[0]),
    "tensordot": lambda x, h: torch.tensordot(x, h, 1),
    "scatter_add": lambda x, h: x.scatter_add(0, torch.zeros(4, 4, dtype=torch.long, device="cuda"), h),
}
_AS_GIVEN: dict[str, Callable[..., torch.Tensor]] = {
    "relu": lambda x, h: h.relu(),
    "gelu": lambda x, h: F.gelu(h),
    "add": lambda x, h: h + h,
    "sqrt": lambda x, h: h.sqrt(),
    "mean": lambda x, h: h.mean(),
    "max_pool": lambda x, h: F.max_pool2d(h[None, None], 2),
    "avg_pool": lambda x, h: F.avg_pool2d(h[None, None], 2),
    "batch_norm": lambda x, h: nn.BatchNorm2d(1).cuda()(h[None, None]),
    "dropout": lambda x, h: F.dropout(h),
    "view": lambda x, h: h.view(-1),
    "max": lambda x, h: h.max(0).values,
}


def _run(call: Callable[..., torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    x = torch.rand(4, 4, device="cuda") + 0.1
    with torch.autocast("cuda", dtype=dtype):
        found = call(x, x.to(dtype))
    assert found.device == CUDA
    return found


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("name", _LOW)
def test_products_run_in_the_low_dtype(name: str, dtype: torch.dtype) -> None:
    assert _run(_LOW[name], dtype).dtype == dtype


@pytest.mark.parametrize("name", _FLOAT)
def test_sums_norms_and_losses_run_in_float32(name: str) -> None:
    assert _run(_FLOAT[name], HALF).dtype == FLOAT


@pytest.mark.parametrize("name", _AS_GIVEN)
def test_other_functions_run_in_the_dtype_they_are_given(name: str) -> None:
    assert _run(_AS_GIVEN[name], HALF).dtype == HALF


def test_doubles_and_integers_are_left_alone() -> None:
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert (x.double() @ x.double()).dtype == torch.float64
        assert (x.int() + x.int()).dtype == torch.int32


def test_regions_nest_and_end() -> None:
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype=BF16):
            assert (x @ x).dtype == BF16
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype == FLOAT
                assert (x.half() @ x.half()).dtype == HALF
            assert (x @ x).dtype == BF16
        assert (x @ x).dtype == HALF
        assert torch.get_autocast_dtype("cuda") == HALF
    assert not torch.is_autocast_enabled("cuda")
    assert (x @ x).dtype == FLOAT


def test_autocast_of_the_host_and_of_the_device_are_apart() -> None:
    x, h = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
    with torch.autocast("cpu"):
        assert (x @ x).dtype == FLOAT
        assert (h @ h).dtype == BF16
        with torch.autocast("cuda"):
            assert ((x @ x).dtype, (h @ h).dtype) == (HALF, BF16)


def test_autocast_as_a_decorator_and_of_a_new_thread() -> None:
    x, found = torch.ones(2, 2, device="cuda"), []

    @torch.autocast("cuda", dtype=BF16)
    def product(a: torch.Tensor) -> torch.Tensor:
        return a @ a

    assert product(x).dtype == BF16
    with torch.autocast("cuda"):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join(30)
    assert found == [FLOAT]


def test_unsafe_loss_is_refused_under_autocast() -> None:
    x = torch.rand(2, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
        nn.BCELoss()(x, x)
    assert nn.BCELoss()(x, x.round()).device == CUDA


def test_gradients_of_autocast_parameters_are_float32() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
    with torch.autocast("cuda"):
        loss = model(torch.ones(2, 4, device="cuda")).sum()
    assert loss.dtype == FLOAT
    loss.backward()
    assert all(parameter.grad.dtype == FLOAT for parameter in model.parameters())


def test_custom_functions_choose_their_autocast() -> None:
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen.append(torch.is_autocast_enabled("cuda"))
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen.append((torch.is_autocast_enabled("cuda"), grad.dtype, grad.device))
            return grad @ b.t(), a.t() @ grad

    class Wide(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FLOAT)
        def forward(ctx, a):
            seen.append((torch.is_autocast_enabled("cuda"), a.dtype))
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return grad

    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        low, wide = Product.apply(x, x), Wide.apply(x.half())
    assert (low.dtype, wide.dtype) == (HALF, FLOAT)
    low.float().sum().backward()
    assert seen == [True, (False, FLOAT), (True, HALF, CUDA)]
    assert x.grad.dtype == FLOAT


def _scaled(scaler: torch.amp.GradScaler, factor: float = 2.0) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * torch.tensor([factor, 1.0], device="cuda")).sum()).backward()
    return weight, optimizer


def test_scaler_grows_after_good_steps_and_halves_after_bad_ones() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=1)
    weight, optimizer = _scaled(scaler)
    scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), weight.tolist()) == (8.0, [-1, 0])
    for bad in (float("inf"), float("nan")):
        before = scaler.get_scale()
        weight, optimizer = _scaled(scaler, bad)
        scaler.step(optimizer)
        scaler.update()
        assert (scaler.get_scale(), weight.tolist()) == (before / 2, [1, 1])


def test_scaler_unscales_once_and_steps_once_for_each_update() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0)
    weight, optimizer = _scaled(scaler)
    assert weight.grad.tolist() == [32, 16]
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [2, 1]
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    scaler.update(new_scale=2.0)
    assert scaler.get_scale() == 2.0


def test_scaler_s_state_saves_and_loads() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=32.0, growth_interval=7)
    _, optimizer = _scaled(scaler)
    scaler.step(optimizer)
    scaler.update()
    state = scaler.state_dict()
    assert (state["scale"], state["growth_interval"], state["_growth_tracker"]) == (32.0, 7, 1)
    again = torch.amp.GradScaler("cuda")
    again.load_state_dict(state)
    assert again.get_scale() == 32.0
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 32.0
    assert scaler.scale(torch.ones(1, device="cuda")).device == CUDA
    assert torch.amp.GradScaler("cuda", enabled=False).state_dict() == {}


def test_scaler_with_a_fused_optimizer() -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler.scale((weight * 3).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.max().item() < 1


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2,
    ],
    ids=str,
)
def test_each_dtype_is_made_converted_copied_and_shown_on_the_device(dtype: torch.dtype) -> None:
    made = torch.ones(3, device="cuda").to(dtype)
    assert (made.dtype, made.device) == (dtype, CUDA)
    assert torch.empty(2, dtype=dtype, device="cuda").device == CUDA
    assert made.cpu().to(torch.complex64).tolist() == [1, 1, 1]
    assert copy.deepcopy(made).dtype == dtype
    assert "device='cuda:0'" in repr(made)
    if dtype.itemsize > 1 or not dtype.is_floating_point:  # torch pickles no float8
        assert pickle.loads(pickle.dumps(made)).device == CUDA


@pytest.mark.parametrize("level", ["highest", "high", "medium"])
def test_precision_of_float32_products_is_a_setting(level: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(level)
    try:
        assert torch.get_float32_matmul_precision() == level
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).tolist() == [[2, 2], [2, 2]]
    finally:
        torch.set_float32_matmul_precision(before)
