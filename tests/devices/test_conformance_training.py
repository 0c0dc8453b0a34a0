"""Training loops as notebooks write them, alike on virtual and on real GPUs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(),
        nn.Linear(36, 3),
    )


def _losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> list[float]:
    inputs, targets = torch.randn(16, 1, 8, 8).cuda(), torch.arange(16).cuda() % 3
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    "make",
    [
        # The ways in which optimizers touch memory: tensor by tensor, in lists, fused, with steps on the device.
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
        lambda p: torch.optim.Adam(p, lr=0.02, foreach=True, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.02, fused=True),
        lambda p: torch.optim.Adam(p, lr=0.02, capturable=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ],
    ids=["single", "foreach", "fused", "capturable", "default"],
)
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable")
def test_cnn_trains_with_each_optimizer(make: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = _cnn().to("cuda")
    optimizer = make(model.parameters())
    losses = _losses(model, optimizer)
    assert losses[-1] < losses[0]
    for parameter in model.parameters():
        assert parameter.device == CUDA
        assert parameter.grad is not None
        assert parameter.grad.device == CUDA
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and name != "step":
                assert value.device == CUDA
    assert all(buffer.device == CUDA for buffer in model.buffers())


def test_training_depends_on_the_seed_alone() -> None:
    def run() -> list[float]:
        torch.manual_seed(3)
        model = _cnn().cuda()
        return _losses(model, torch.optim.Adam(model.parameters(), lr=0.01), steps=3)

    assert run() == run()


def test_transformer_trains() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, device="cuda")
    model = nn.Sequential(nn.Embedding(10, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=6)
    tokens = torch.randint(0, 10, (4, 6), device="cuda")
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.device == CUDA
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    with torch.inference_mode():
        assert model(tokens).device == CUDA


def test_recurrent_network_takes_packed_sequences() -> None:
    rnn = nn.LSTM(3, 5, batch_first=True, num_layers=2, dropout=0.2).cuda()
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(2, 4, 3, device="cuda"), torch.tensor([4, 2]), batch_first=True
    )
    assert packed.data.device == CUDA
    assert packed.batch_sizes.device.type == "cpu"
    output, (hidden, _) = rnn(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    assert padded.device == CUDA
    assert hidden.device == CUDA
    assert lengths.tolist() == [4, 2]
    padded.sum().backward()
    with pytest.raises(RuntimeError, match="should be a 1D CPU int64 tensor"):
        nn.utils.rnn.pack_padded_sequence(torch.randn(2, 4, 3, device="cuda"), torch.tensor([4, 2]).cuda(), True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_gives_cuda_s_dtypes_and_scaler_trains(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = _cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    inputs, targets = torch.randn(16, 1, 8, 8, device="cuda"), torch.arange(16, device="cuda") % 3
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
        assert logits.dtype == dtype
        assert loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 65536.0
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_autocast_follows_cuda_s_lists_and_leaves_the_host_alone() -> None:
    x = torch.rand(4, 4, device="cuda")
    with torch.autocast("cuda"):
        assert (x @ x).dtype == torch.float16
        assert F.conv1d(x[None], x[:, :, None]).dtype == torch.float16
        assert (x @ x).softmax(-1).dtype == torch.float32
        assert F.layer_norm(x @ x, (4,)).dtype == torch.float32
        assert ((x @ x) ** 2).dtype == torch.float32
        assert (x + x).dtype == torch.float32
        assert (torch.rand(4, 4) @ torch.rand(4, 4)).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_scaler_skips_a_step_with_infinite_gradients() -> None:
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale((weight * torch.tensor([float("inf"), 1.0], device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1, 1]
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loader_with_workers_and_pinned_memory_feeds_a_device(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0), torch.arange(12))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, pin_memory=True)
    seen = []
    for values, _labels in loader:
        assert values.device.type == "cpu"
        assert values.is_pinned()
        seen += (values.to("cuda", non_blocking=True) * 2).tolist()
    assert sorted(seen) == [2.0 * value for value in range(12)]


def test_new_threads_see_the_device() -> None:
    model = nn.Linear(2, 2).cuda()
    found: list[object] = []

    def work() -> None:
        out = model(torch.ones(1, 2, device="cuda"))
        out.sum().backward()
        found.append((out.device, torch.zeros(1).cuda().is_cuda))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [(CUDA, True)] * 3
    assert model.weight.grad.device == CUDA


def test_gradients_follow_the_device_of_what_they_belong_to() -> None:
    host = torch.ones(3, requires_grad=True)
    moved = host.cuda()
    moved.retain_grad()
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    seen = []
    leaf.register_hook(lambda grad: seen.append(grad.device) or grad * torch.ones(3, device="cuda"))
    moved.register_hook(lambda grad: seen.append(grad.device))
    (moved * leaf).sum().backward()
    assert host.grad.device.type == "cpu"
    assert host.grad.tolist() == [1, 1, 1]
    assert moved.grad.device == CUDA
    assert leaf.grad.device == CUDA
    assert seen == [CUDA, CUDA]
    (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf, create_graph=True)
    assert gradient.device == CUDA
    (second,) = torch.autograd.grad(gradient.sum(), [leaf])
    assert second.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="assigned grad has data located on a different device"):
        leaf.grad = torch.ones(3)


def test_hooks_see_gradients_where_their_tensor_has_moved() -> None:
    seen = []
    model = nn.Linear(2, 1, bias=False)
    model.weight.register_hook(lambda grad: seen.append(grad.device.type))
    for device in ("cuda", "cpu", "cuda"):
        model.to(device)
        model.weight.register_hook(lambda grad: seen.append(grad.device.type))
        model.zero_grad()
        model(torch.ones(3, 2, device=device)).sum().backward()
    assert seen == ["cuda"] * 2 + ["cpu"] * 3 + ["cuda"] * 4


def test_custom_function_sees_gradients_on_the_device() -> None:
    seen = []

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x, factor)
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            x, factor = ctx.saved_tensors
            seen.append((grad.device, x.device))
            return grad * factor, (grad * torch.ones(2, device=grad.device)).sum()

    x = torch.ones(2, device="cuda", requires_grad=True)
    factor = torch.tensor(3.0, device="cuda", requires_grad=True)
    Scale.apply(x, factor).sum().backward()
    assert seen == [(CUDA, CUDA)]
    assert x.grad.tolist() == [3, 3]
    assert x.grad.device == factor.grad.device == CUDA


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_repeat_their_random_numbers(reentrant: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    out = checkpoint(layer, x, use_reentrant=reentrant)
    out.sum().backward()
    assert x.grad.device == CUDA
    assert layer[0].weight.grad.device == CUDA
    dropped = out == 0
    assert layer[0].bias.grad.tolist() == pytest.approx((2.0 * (~dropped).float()).sum(0).tolist())


def test_module_hooks_and_state_dict_keep_the_device() -> None:
    model, other = _cnn().cuda(), _cnn()
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.device))
    model[0].register_full_backward_hook(lambda module, grads, outs: seen.append(outs[0].shape[0]))
    model(torch.randn(2, 1, 8, 8, device="cuda", requires_grad=True)).sum().backward()
    assert seen == [CUDA, 2]
    other.load_state_dict(model.state_dict())
    assert next(other.parameters()).device.type == "cpu"
    model.load_state_dict(other.state_dict())
    assert all(value.device == CUDA for value in model.state_dict().values())
    model.cpu()
    assert all(value.device.type == "cpu" for value in model.state_dict().values())
    assert model[0].weight.grad.device.type == "cpu"
    model.to("cuda").half()
    assert model[0].weight.device == CUDA
    assert model[0].weight.dtype == torch.float16


def test_module_moved_by_index_or_meta_materialised_is_on_the_device() -> None:
    assert nn.Linear(2, 2).to(0).weight.device == CUDA
    with torch.device("meta"):
        meta = nn.Linear(2, 2)
    assert meta.to_empty(device="cuda").weight.device == CUDA
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.empty(1, device="meta").cuda()


def test_data_parallel_runs_on_its_first_device() -> None:
    model = nn.DataParallel(nn.Linear(2, 3)).cuda()
    assert model(torch.ones(4, 2)).device == CUDA
    model(torch.ones(4, 2).cuda()).sum().backward()
    assert model.module.weight.grad.device == CUDA


@pytest.mark.filterwarnings("ignore")
def test_scripted_and_traced_modules_run_on_the_device() -> None:
    x = torch.ones(1, 2, device="cuda")

    @torch.jit.script
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    assert double(x).device == CUDA
    assert torch.jit.script(nn.Linear(2, 2).cuda())(x).device == CUDA
    assert torch.jit.trace(nn.Linear(2, 2).cuda(), x)(x).device == CUDA
    assert double(x.cpu()).device.type == "cpu"


def test_streams_and_events_order_and_time_work() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream()
    start.record()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        torch.randn(64, 64, device="cuda").mm(torch.randn(64, 64, device="cuda"))
    torch.cuda.current_stream().wait_stream(stream)
    end.record()
    torch.cuda.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_nothing_warns_in_an_ordinary_loop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.LSTM(2, 2).cuda()
        model(torch.ones(1, 1, 2, device="cuda"))[0].sum().backward()
        with torch.autocast("cuda"):
            pass
