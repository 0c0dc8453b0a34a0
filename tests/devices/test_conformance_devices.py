"""Ways to name a device, to ask about it, and how its tensors show themselves; alike on virtual and on real GPUs."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def test_device_is_named_by_index_too() -> None:
    assert torch.device(0) == torch.device("cuda:0") == torch.device("cuda", 0) == torch.device(type="cuda", index=0)
    assert torch.device("cuda") != torch.device("cuda", 0)
    assert torch.device("cuda").index is None
    assert torch.device(torch.device("cuda:0")) == CUDA
    assert isinstance(CUDA, torch.device)
    assert isinstance(torch.device("cpu"), torch.device)
    assert not isinstance("cuda", torch.device)
    assert repr(CUDA) == "device(type='cuda', index=0)"
    assert str(torch.device(0)) == "cuda:0"
    assert {CUDA: 1}[torch.device(0)] == 1
    assert copy.deepcopy(CUDA) == pickle.loads(pickle.dumps(CUDA)) == CUDA
    with pytest.raises(RuntimeError):
        torch.device("gpu")
    with pytest.raises(RuntimeError):
        torch.device(-1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(1, device=0),
        lambda: torch.ones(1).to(0),
        lambda: torch.ones(1).to(device=0, dtype=torch.half, non_blocking=True, copy=True),
        lambda: torch.ones(1).to(torch.device(0)),
        lambda: torch.ones(1).cuda(torch.device(0)),
        lambda: torch.ones(1).cuda("cuda:0", non_blocking=True),
        lambda: torch.ones(1).new_zeros(2, device=0),
        lambda: nn.Linear(1, 1, device=0).weight,
        lambda: nn.Linear(1, 1).cuda(0).weight,
        lambda: nn.Linear(1, 1).to(device="cuda").weight,
        lambda: nn.LazyLinear(2).cuda()(torch.ones(1, 3, device="cuda")),
        lambda: nn.Parameter(torch.ones(1)).cuda(),
        lambda: torch.nn.utils.skip_init(nn.Linear, 2, 2, device="cuda").weight,
        lambda: torch.UntypedStorage(4, device="cuda"),
        lambda: torch.as_tensor(np.ones(2), device="cuda"),
        lambda: torch.asarray(np.ones(2), device=0),
        lambda: torch.tensor(np.float32(2), device="cuda"),
        lambda: torch.scalar_tensor(2, device="cuda"),
        lambda: torch.tril_indices(2, 2, device="cuda"),
        lambda: torch.fft.fftfreq(4, device="cuda"),
        lambda: torch.hann_window(4, device="cuda"),
        lambda: torch.complex(torch.ones(1, device="cuda"), torch.ones(1, device="cuda")),
        lambda: torch.load(_saved(torch.ones(1)), map_location="cuda"),
        lambda: torch.empty(0, device="cuda").resize_(4),
    ],
)
def test_each_way_to_the_device_leads_there(make) -> None:
    assert make().device == CUDA


def _saved(value: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def test_array_of_the_host_is_copied_to_the_device() -> None:
    array = np.zeros(3)
    made = [torch.as_tensor(array, device="cuda"), torch.asarray(array, device="cuda"), torch.from_numpy(array).cuda()]
    for device in made:
        device += 1
    assert array.tolist() == [0, 0, 0]
    assert torch.as_tensor(array).data_ptr() == array.ctypes.data


def test_contexts_of_devices_nest_and_end() -> None:
    with torch.device("cuda"):
        assert torch.ones(1).device == CUDA
        with torch.device("cpu"):
            assert torch.ones(1).device.type == "cpu"
        assert torch.get_default_device() == CUDA
        assert nn.Embedding(2, 2).weight.device == CUDA
        assert torch.from_numpy(np.ones(1)).device.type == "cpu"
        assert torch.zeros_like(torch.ones(1, device="cpu")).device.type == "cpu"
    assert torch.ones(1).device.type == "cpu"
    torch.set_default_device(0)
    try:
        assert torch.rand(2).device == torch.arange(2).device == torch.tensor([1]).device == CUDA
    finally:
        torch.set_default_device(None)
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(None), torch.cuda.device_of(torch.ones(1)):
        assert torch.cuda.current_device() == 0


def test_questions_about_the_device_agree() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() >= 1
    assert torch.cuda.get_device_name() == torch.cuda.get_device_name("cuda:0") == properties.name
    assert torch.cuda.get_device_capability(CUDA) == (properties.major, properties.minor)
    assert any(arch.startswith("sm_") for arch in torch.cuda.get_arch_list())
    assert properties.total_memory > 0
    assert properties.multi_processor_count > 0
    assert f"name='{properties.name}'" in repr(properties)
    assert torch.version.cuda is not None
    assert torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() > 0
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_initialized() or torch.ones(1, device="cuda").is_cuda
    assert torch.backends.cuda.cufft_plan_cache.max_size >= 0
    for wrong in (torch.cuda.device_count(), "cuda:63"):
        with pytest.raises((RuntimeError, AssertionError)):
            torch.cuda.get_device_properties(wrong)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.get_device_name("cpu")


@pytest.mark.filterwarnings("ignore:The torch.cuda")  # these constructors are old
def test_types_tell_host_and_device_apart() -> None:
    device, host = torch.ones(2, device="cuda"), torch.ones(2)
    assert (isinstance(host, torch.FloatTensor), isinstance(device, torch.FloatTensor)) == (True, False)
    assert (isinstance(host, torch.cuda.FloatTensor), isinstance(device, torch.cuda.FloatTensor)) == (False, True)
    assert isinstance(host.long(), torch.LongTensor)
    assert isinstance(device.half(), torch.cuda.HalfTensor)
    assert isinstance(device, torch.Tensor)
    assert device.type(torch.DoubleTensor).device.type == "cpu"
    assert host.type(torch.cuda.DoubleTensor).device == CUDA
    assert device.type(torch.float64).type() == "torch.cuda.DoubleTensor"
    assert torch.FloatTensor([1, 2]).tolist() == [1, 2]
    assert torch.LongTensor(2, 3).shape == (2, 3)
    assert torch.cuda.FloatTensor(2).fill_(1).device == CUDA
    assert (device.get_device(), host.get_device()) == (0, -1)
    assert torch.get_device(device) == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.tensor(3, device="cuda"), "tensor(3, device='cuda:0')"),
        (lambda: torch.tensor([], device="cuda"), "tensor([], device='cuda:0')"),
        (lambda: torch.ones(1, device="cuda").half(), "tensor([1.], device='cuda:0', dtype=torch.float16)"),
        (
            lambda: torch.ones(1, device="cuda", requires_grad=True) * 2,
            "tensor([2.], device='cuda:0', grad_fn=<MulBackward0>)",
        ),
        (lambda: [torch.tensor(True, device="cuda")], "[tensor(True, device='cuda:0')]"),
        (lambda: torch.ones(2, device="cuda").cpu(), "tensor([1., 1.])"),
        (
            lambda: nn.Parameter(torch.ones(1, device="cuda")),
            "Parameter containing:\ntensor([1.], device='cuda:0', requires_grad=True)",
        ),
        (lambda: torch.ones(2000, device="cuda"), "tensor([1., 1., 1.,  ..., 1., 1., 1.], device='cuda:0')"),
        (lambda: torch.complex(torch.ones(1), torch.ones(1)).cuda(), "tensor([1.+1.j], device='cuda:0')"),
        (lambda: nn.Linear(1, 2).cuda(), "Linear(in_features=1, out_features=2, bias=True)"),
        (lambda: torch.cuda.default_stream(), "<torch.cuda.Stream device=cuda:0 cuda_stream=0x0>"),
    ],
)
def test_values_show_themselves_as_on_cuda(make, text: str) -> None:
    assert repr(make()) == text


def test_formats_and_numbers_of_scalars() -> None:
    value = torch.tensor(2.5, device="cuda")
    assert f"{value:.1f} {value}" == "2.5 2.5"
    assert "%s" % value == "tensor(2.5000, device='cuda:0')"  # noqa: UP031 - a notebook's own way
    assert (float(value), int(value), bool(value), round(value.item())) == (2.5, 2, True, 2)
    assert [10, 20, 30][torch.tensor(1, device="cuda")] == 20
    assert list(range(torch.tensor(2, device="cuda"))) == [0, 1]
    assert np.float32(value.item()) == 2.5


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.numpy(),
        lambda x: np.array(x),
        lambda x: np.asarray(x),
        lambda x: np.stack([x, x]),
        lambda x: np.add(x, 1),
        lambda x: x.__array__(),
        lambda x: np.mean(x.detach().numpy()),
    ],
)
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_numpy_takes_no_device_memory(use) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()"):
        use(torch.ones(2, device="cuda"))


def test_numpy_takes_copies() -> None:
    x = torch.ones(2, device="cuda", requires_grad=True)
    assert x.numpy(force=True).tolist() == x.detach().cpu().numpy().tolist() == np.array(x.tolist()).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        x.cpu().numpy()


def test_settings_of_backends_are_kept() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
    try:
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = True, True, False, False
        assert (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32) == (True, True, False, False)
        with torch.backends.cudnn.flags(enabled=False):
            assert not cudnn.enabled
            nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2, device="cuda"))
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before


def test_memory_figures_follow_what_lives() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.zeros(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    view, twin = kept[10:], kept.clone()
    assert torch.cuda.memory_allocated() - before == 8 << 20
    del kept, twin
    assert torch.cuda.memory_allocated() - before == 4 << 20
    assert torch.cuda.max_memory_allocated() - before == 8 << 20
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del view
    assert torch.cuda.memory_allocated() == before
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    grown = torch.empty(0, device="cuda")
    grown.resize_(1 << 20)
    assert torch.cuda.memory_allocated() - before == 4 << 20
    torch.add(torch.ones(1 << 20, device="cuda"), 1, out=(out := torch.empty(0, device="cuda")))
    assert torch.cuda.memory_allocated() - before == 8 << 20
    assert out.numel() == 1 << 20
    tiny = torch.zeros(1, device="cuda")
    assert torch.cuda.memory_allocated() - before == (8 << 20) + 512
    assert tiny.device == CUDA


def test_memory_tables_have_torch_s_names() -> None:
    kept = torch.zeros(1 << 20, device="cuda")
    stats = torch.cuda.memory_stats()
    for name in ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "num_ooms"):
        assert stats[name] >= 0
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() >= kept.nbytes
    assert stats["allocation.all.current"] >= 1
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
    table = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in table
    assert "| Allocated memory" in table
    assert "Active memory" in torch.cuda.memory_summary(abbreviated=True)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


def test_tensor_larger_than_the_device_raises_and_the_device_goes_on() -> None:
    ooms = torch.cuda.memory_stats()["num_ooms"]
    text = r"CUDA out of memory\. Tried to allocate .* GiB\. GPU 0 has a total capacity of .* of which .* is free"
    with pytest.raises(torch.OutOfMemoryError, match=text):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert torch.OutOfMemoryError is torch.cuda.OutOfMemoryError
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    assert torch.ones(2, device="cuda").sum().item() == 2
