"""Idioms of real notebooks (RL, GANs, metrics, distributions, torch.func, ...), alike on virtual and on real GPUs."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import distributions, nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

pytestmark = [
    pytest.mark.usefixtures("device_kind"),
    pytest.mark.filterwarnings("ignore"),  # idioms that torch calls deprecated are still written
]

CUDA = torch.device("cuda", 0)


def test_policy_gradient_step() -> None:
    net = nn.Linear(4, 2).to("cuda")
    state = torch.from_numpy(np.zeros(4)).float().unsqueeze(0).to("cuda")
    chosen = distributions.Categorical(F.softmax(net(state), dim=1))
    action = chosen.sample()
    rewards = torch.tensor([1.0, 2.0], device="cuda")
    rewards = (rewards - rewards.mean()) / (rewards.std() + np.finfo(np.float32).eps.item())
    assert action.item() in (0, 1)
    torch.cat([-chosen.log_prob(action) * rewards[0]]).sum().backward()
    assert net.weight.grad.device == CUDA
    values = torch.zeros(3, device="cuda")
    mask = torch.tensor([True, False, True], device="cuda")
    values[mask] = net(torch.cat([state, state])).max(1).values.detach()
    target = net.state_dict()
    for name in target:
        target[name] = target[name] * 0.5 + 0.5
    net.load_state_dict(target)
    assert net(torch.cat([state, state])).gather(1, torch.tensor([[0], [1]], device="cuda")).device == CUDA


def test_gan_step_with_gradient_penalty() -> None:
    critic = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(72, 1)).cuda()
    generator = nn.Sequential(nn.ConvTranspose2d(4, 1, 8), nn.Tanh()).cuda()
    generator.apply(lambda m: nn.init.normal_(m.weight.data, 0, 0.02) if isinstance(m, nn.ConvTranspose2d) else None)
    real, label = torch.rand(2, 1, 8, 8).to("cuda"), torch.full((2,), 1.0, device="cuda")
    fake = generator(torch.randn(2, 4, 1, 1, device="cuda"))
    F.binary_cross_entropy_with_logits(critic(fake.detach()).view(-1), label.fill_(0.0)).backward()
    mixed = (torch.rand(2, 1, 1, 1, device="cuda") * real + fake.detach()).requires_grad_()
    out = critic(mixed)
    (gradient,) = torch.autograd.grad(out, mixed, torch.ones_like(out), create_graph=True)
    ((gradient.view(2, -1).norm(2, dim=1) - 1) ** 2).mean().backward()
    assert fake.detach().cpu().numpy().shape == (2, 1, 8, 8)


def test_parameters_updated_by_hand() -> None:
    weight = torch.randn(3, 2, device="cuda", requires_grad=True)
    inputs, targets = torch.randn(5, 3).cuda(), torch.randn(5, 2, device="cuda")
    losses = []
    for _ in range(5):
        loss = ((inputs @ weight - targets) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad.zero_()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    weight.data.clamp_(-0.1, 0.1)
    weight.data = torch.zeros(3, 2, device="cuda")
    assert weight.device == CUDA


def test_accuracy_and_class_weights() -> None:
    predicted, labels = torch.tensor([1, 0], device="cuda"), torch.tensor([1, 1]).to("cuda")
    assert predicted.eq(labels.view_as(predicted)).sum().item() == 1
    assert (predicted == labels).float().mean().cpu().item() == 0.5
    assert nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])).to("cuda")(torch.rand(2, 2).cuda(), labels).is_cuda
    assert F.one_hot(labels).device == CUDA
    assert [float(one) for one in torch.ones(2, device="cuda")] == [1, 1]
    assert max(torch.tensor([1.0, 3.0], device="cuda")).item() == 3
    assert 3 in torch.tensor([1, 3], device="cuda")


def test_distributions_sample_on_the_device_by_its_seed() -> None:
    zeros, ones = torch.zeros(2, device="cuda"), torch.ones(2, device="cuda")
    made = [
        distributions.Normal(zeros, ones), distributions.Categorical(logits=zeros), distributions.Dirichlet(ones),
        distributions.Beta(ones, ones), distributions.Bernoulli(ones / 2), distributions.Gamma(ones, ones),
        distributions.MultivariateNormal(zeros, torch.eye(2, device="cuda")),
    ]
    for one in made:
        torch.manual_seed(0)
        first = one.sample((4,))
        torch.manual_seed(0)
        assert first.device == CUDA
        assert torch.equal(one.sample((4,)), first)


def test_function_transforms_keep_the_device() -> None:
    model, x = nn.Linear(2, 2).cuda(), torch.ones(3, 2, device="cuda")
    parameters = dict(model.named_parameters())

    def loss(values, one):
        return functional_call(model, values, (one,)).sum()

    assert vmap(grad(loss), in_dims=(None, 0))(parameters, x)["weight"].device == CUDA
    assert jacrev(model)(x[0]).device == CUDA
    assert hessian(lambda one: (model(one) ** 2).sum())(x[0]).device == CUDA
    assert torch.autograd.functional.jacobian(model, x[0]).device == CUDA


def test_attention_with_masks() -> None:
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1).cuda(), torch.randn(2, 3, 8, device="cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(3, device="cuda")
    out, weights = layer(x, x, x, attn_mask=mask)
    assert out.device == weights.device == CUDA
    assert F.scaled_dot_product_attention(x, x, x, is_causal=True).device == CUDA


def test_reparametrised_tied_and_averaged_modules() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)).cuda()
    normed(torch.ones(1, 2, device="cuda")).sum().backward()
    tied = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    tied[1].weight = tied[0].weight
    tied.cuda()
    assert tied[1].weight is tied[0].weight
    twin = copy.deepcopy(tied)
    assert twin[1].weight is twin[0].weight
    average = torch.optim.swa_utils.AveragedModel(tied)
    average.update_parameters(tied)
    assert average.module[0].weight.device == CUDA


def test_lbfgs_converges() -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.LBFGS([weight])

    def closure():
        optimizer.zero_grad()
        loss = ((weight - 3) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.tolist() == pytest.approx([3, 3])


def test_older_mixed_precision_names_work() -> None:
    model = nn.Linear(4, 4).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        loss = model(torch.ones(2, 4, device="cuda")).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_default_tensor_type_sets_dtype_and_device() -> None:
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.ones(1).device == CUDA
    torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.ones(1).device.type == "cpu"


def test_pools_and_coroutines_see_the_device() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda size: torch.ones(size, device="cuda").is_cuda, range(1, 5)))

    async def go() -> tuple[bool, bool]:
        return await asyncio.to_thread(lambda: torch.ones(1).cuda().is_cuda), torch.ones(1).cuda().is_cuda

    assert asyncio.run(go()) == (True, True)


class _OnDevice(Dataset):
    def __init__(self) -> None:
        self.values = torch.ones(4, 2, device="cuda")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index]


def test_loader_workers_may_not_use_the_device() -> None:
    assert next(iter(DataLoader(_OnDevice(), 2))).device == CUDA
    batches = iter(DataLoader(_OnDevice(), 2, num_workers=1))
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess|CUDA error"):
        next(batches)
    batches._shutdown_workers()


def test_anomaly_mode_profiler_and_marks_do_not_disturb() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (x * 2).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        x + 1
    assert "aten::add" in profile.key_averages().table(sort_by="cpu_time_total", row_limit=5)
    with torch.cuda.nvtx.range("step"):
        assert (x + 1).is_cuda


def test_symbolic_and_exported_programs_run() -> None:
    class Double(nn.Module):
        def forward(self, x):
            return torch.relu(x) * 2

    x = torch.ones(2, device="cuda")
    assert torch.fx.symbolic_trace(Double())(x).device == CUDA
    assert torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()(torch.ones(1, 2)).shape == (1, 2)


def test_scalars_mix_but_are_not_stacked_across_devices() -> None:
    x = torch.ones(2, device="cuda")
    host = torch.tensor(2.0)
    assert (x * host).tolist() == [2, 2]
    assert host.device.type == "cpu"
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([x[0], host])


def test_nested_tensors_are_on_the_device() -> None:
    made = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")
    assert made.device == CUDA
    assert (made * 2).unbind()[0].device == CUDA
