"""What a tensor on a device says and does, alike on virtual and on real GPUs."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", CUDA, torch.device("cuda")])
@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(3, device=d),
        lambda d: torch.tensor([1.0, 2.0], device=d),
        lambda d: torch.as_tensor([1.0, 2.0], device=d),
        lambda d: torch.arange(3, device=d),
        lambda d: torch.randn(2, 2, device=d),
        lambda d: torch.full((2,), 1.0, device=d),
        lambda d: torch.eye(2, device=d),
        lambda d: torch.zeros_like(torch.ones(2), device=d),
        lambda d: torch.ones(2).new_zeros(3, device=d),
        lambda d: torch.ones(2).to(d),
        lambda d: torch.ones(2).to(device=d, dtype=torch.float64),
        lambda d: torch.ones(2).to(d, torch.float16),
        lambda d: torch.ones(2).cuda(),
        lambda d: torch.ones(2).cuda(0),
        lambda d: torch.ones(2).type("torch.cuda.FloatTensor"),
        lambda d: torch.ones(2).type_as(torch.ones(1, device=d)),
        lambda d: torch.ones(2).to(torch.ones(1, device=d)),
        lambda d: torch.from_numpy(np.ones(3)).to(d),
        lambda d: torch.nn.Linear(2, 2, device=d).weight,
        lambda d: torch.nn.Linear(2, 2).to(d).bias,
    ],
)
def test_tensor_asked_for_a_device_is_there(make, device) -> None:
    tensor = make(device)
    assert tensor.device == CUDA
    assert tensor.is_cuda
    assert not tensor.is_cpu
    assert tensor.get_device() == 0


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: x @ x,
        lambda x: x[0],
        lambda x: x[x > 0.5],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.T,
        lambda x: x.view(-1),
        lambda x: x.reshape(-1, 1).contiguous(),
        lambda x: x.detach(),
        lambda x: x.data,
        lambda x: x.clone(),
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: x.sum(),
        lambda x: x.max(dim=0).values,
        lambda x: x.split(1)[0],
        lambda x: x.unbind()[1],
        lambda x: torch.cat([x, x]),
        lambda x: torch.stack((x, x)),
        lambda x: torch.topk(x, 1)[1],
        lambda x: torch.linalg.svd(x)[0],
        lambda x: torch.fft.fft(x),
        lambda x: torch.zeros_like(x),
        lambda x: x.new_tensor([1.0]),
        lambda x: x.new_zeros(4),
        lambda x: torch.empty(0, device="cuda").set_(x),
        lambda x: torch.tensor(x.tolist(), device=x.device),
        lambda x: torch.nn.Parameter(x),
        lambda x: x.add_(1),
        lambda x: x.float(),
        lambda x: torch.add(x, x, out=torch.empty_like(x)),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.ops.aten.mul(x, x),
        lambda x: torch.nn.functional.softmax(x, -1),
        lambda x: x.to_sparse(),
        lambda x: (x.to_sparse() @ x),
        lambda x: torch.vmap(lambda row: row * 2)(x),
        lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
        lambda x: next(iter(x)),
        lambda x: torch.broadcast_tensors(x, torch.ones(1, device="cuda"))[1],
    ],
)
def test_result_of_device_tensors_is_on_the_device(derive) -> None:
    assert derive(torch.rand(2, 2, device="cuda")).device == CUDA


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.ones(1)),
        lambda x: x.type(torch.FloatTensor),
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: torch.as_tensor(x, device="cpu"),
        lambda x: x.new_ones(2, device="cpu"),
        lambda x: torch.tensor([x[0, 0], x[0, 1]]),
        lambda x: torch.tensor(x.tolist()),
        lambda x: torch.ones(2, 2).copy_(x),
        lambda x: torch.ones(3),
    ],
)
def test_host_tensor_stays_on_the_host(derive) -> None:
    host = derive(torch.rand(2, 2, device="cuda"))
    assert host.device == torch.device("cpu")
    assert not host.is_cuda
    host.numpy()


def test_move_makes_new_memory_and_same_device_does_not() -> None:
    host = torch.zeros(3)
    device = host.to("cuda")
    device += 1
    assert host.sum().item() == 0
    back = device.cpu()
    back += 1
    assert device.sum().item() == 3
    assert device.to("cuda") is device
    assert device.cuda() is device
    assert host.cpu() is host
    assert device.to("cuda", copy=True) is not device


def test_views_share_memory_on_the_device() -> None:
    base = torch.zeros(4, device="cuda")
    base[1:3].fill_(7)
    assert base.tolist() == [0, 7, 7, 0]
    base.view(2, 2)[1] = torch.ones(2)
    assert base.tolist() == [0, 7, 1, 1]
    assert base[2:].untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_numpy_of_a_device_tensor_is_refused_with_torch_s_text() -> None:
    text = r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\) to copy the tensor to host memory"
    tensor = torch.ones(2, device="cuda")
    with pytest.raises(TypeError, match=text):
        tensor.numpy()
    with pytest.raises(TypeError, match=text):
        np.asarray(tensor)
    assert tensor.numpy(force=True).tolist() == [1, 1]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, h: x + h,
        lambda x, h: h * x,
        lambda x, h: torch.cat([x, h]),
        lambda x, h: x.add_(h),
        lambda x, h: torch.add(x, x, out=torch.empty(2, 2)),
        lambda x, h: h + x[0, 0],
        lambda x, h: torch.nn.Linear(2, 2).cuda()(h),
        lambda x, h: torch.nn.functional.mse_loss(x, h),
        lambda x, h: torch.where(x > 0, x, h),
    ],
)
def test_mixing_devices_raises_as_cuda_does(mix) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_convolution_of_host_input_names_both_types() -> None:
    text = r"Input type \(torch.FloatTensor\) and weight type \(torch.cuda.FloatTensor\) should be the same"
    with pytest.raises(RuntimeError, match=text):
        torch.nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2))


def test_recurrent_layer_with_host_input_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not at the same device, found input tensor at cpu"):
        torch.nn.LSTM(2, 2).cuda()(torch.ones(1, 1, 2))


def test_host_tensor_takes_no_device_index() -> None:
    with pytest.raises(RuntimeError, match="indices should be either on"):
        torch.ones(3)[torch.tensor([1], device="cuda")]


def test_repr_names_the_device() -> None:
    tensor = torch.tensor([1.0, 2.0], device="cuda")
    assert repr(tensor) == "tensor([1., 2.], device='cuda:0')"
    assert f"{tensor}" == repr(tensor)
    assert f"{tensor[0]:.1f}" == "1.0"
    assert repr(tensor.requires_grad_()) == "tensor([1., 2.], device='cuda:0', requires_grad=True)"
    assert "device='cuda:0'" in repr(torch.nn.Parameter(tensor.detach()))


def test_types_have_their_cuda_names() -> None:
    tensor = torch.ones(2, device="cuda")
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.long().type() == "torch.cuda.LongTensor"
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert torch.cuda.FloatTensor([1, 2]).device == CUDA
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert torch.empty(0).type() == "torch.FloatTensor"


def test_default_device_applies_to_constructors_only() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).device == CUDA
        assert torch.tensor([1]).device == CUDA
        assert torch.nn.Linear(2, 2).weight.device == CUDA
        assert torch.ones(2, device="cpu").device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).device == CUDA
        assert torch.as_tensor([1]).device == CUDA
        assert torch.from_numpy(np.ones(2)).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_random_numbers_follow_the_device_s_seed_alone() -> None:
    torch.manual_seed(5)
    first, host = torch.rand(4, device="cuda"), torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4), host)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    assert not torch.equal(torch.rand(4, device="cuda"), first)
    state = torch.cuda.get_rng_state()
    drawn = torch.nn.functional.dropout(torch.ones(20, device="cuda"))
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.nn.functional.dropout(torch.ones(20, device="cuda")), drawn)
    torch.cuda.manual_seed(9)
    again = torch.randn(3, device="cuda")
    torch.cuda.manual_seed_all(9)
    assert torch.equal(torch.randn(3, device="cuda"), again)
    assert torch.cuda.initial_seed() == 9


def test_drawing_on_the_device_leaves_the_host_s_stream_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(100, device="cuda")
    torch.nn.functional.dropout(torch.ones(9, device="cuda"))
    torch.nn.init.normal_(torch.empty(5, device="cuda"))
    assert torch.equal(torch.rand(3), expected)


def test_generator_of_the_device_fills_its_tensors_only() -> None:
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device.type == "cuda"
    first = torch.rand(3, device="cuda", generator=generator)
    generator.manual_seed(3)
    assert torch.equal(torch.rand(3, device="cuda", generator=generator), first)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, device="cuda", generator=torch.Generator())
    twin = pickle.loads(pickle.dumps(generator))
    assert torch.equal(torch.rand(3, device="cuda", generator=twin), torch.rand(3, device="cuda", generator=generator))
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator().device.type == "cpu"


def test_pinned_memory_is_a_copy_that_says_so() -> None:
    host = torch.ones(3)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert not host.is_pinned()
    assert torch.empty(2, pin_memory=True).is_pinned()
    pinned += 1
    assert host.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor'"):
        torch.ones(1, device="cuda").pin_memory()


def test_storage_says_and_changes_its_device() -> None:
    storage = torch.arange(3, device="cuda").untyped_storage()
    assert storage.device == CUDA
    assert storage.is_cuda
    assert storage.cpu().device.type == "cpu"
    assert storage.cpu().tolist() == storage.tolist()
    assert torch.ones(2).untyped_storage().cuda().device == CUDA


def test_unknown_device_index_is_refused() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:63")
