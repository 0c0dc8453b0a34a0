"""A kernel answers for the pool's devices and refuses the first use of one."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from looseleaf import devices
from looseleaf.devices.description import GpuDescription
from looseleaf.errors import PreconditionFailed

pytestmark = pytest.mark.usefixtures("kernel")


def _saved_on_device() -> io.BytesIO:
    devices.install("worker", "emulated", 2)
    buffer = io.BytesIO()
    torch.save(torch.ones(2, device="cuda"), buffer)
    devices.install("kernel", "emulated", 2)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.zeros(1).cuda(),
        lambda: torch.zeros(1).cuda(0),
        lambda: torch.zeros(1).to("cuda"),
        lambda: torch.zeros(1).to(torch.device("cuda", 1)),
        lambda: torch.zeros(1).to(0),
        lambda: torch.zeros(1, device="cuda"),
        lambda: torch.tensor([1.0], device="cuda:1"),
        lambda: torch.as_tensor([1.0], device="cuda"),
        lambda: torch.randn(2, device="cuda"),
        lambda: torch.zeros(1).new_zeros(2, device="cuda"),
        lambda: torch.zeros(1).type("torch.cuda.FloatTensor"),
        lambda: torch.cuda.FloatTensor([1.0]),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: nn.Linear(2, 2).to("cuda"),
        lambda: nn.Linear(2, 2).to(0),
        lambda: nn.Linear(2, 2).to(device="cuda"),
        lambda: nn.Linear(2, 2).to(device=torch.device(0)),
        lambda: torch.zeros(1).to(torch.device(0)),
        lambda: torch.zeros(1).to(device=0),
        lambda: torch.UntypedStorage(4, device="cuda"),
        lambda: torch.Stream(device="cuda"),
        lambda: torch.Event(device="cuda", enable_timing=True),
        lambda: nn.Linear(2, 2, device="cuda"),
        lambda: torch.Generator(device="cuda"),
        lambda: torch.zeros(1).untyped_storage().cuda(),
        lambda: torch.load(io.BytesIO(_file_of(torch.ones(1))), map_location="cuda"),
        lambda: torch.cuda.init(),
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.empty_cache(),
        lambda: torch.cuda.memory_allocated(),
        lambda: torch.cuda.max_memory_allocated(),
        lambda: torch.cuda.device_memory_used(),
        lambda: torch.cuda.memory_summary(),
        lambda: torch.cuda.reset_peak_memory_stats(),
        lambda: torch.cuda.Stream(),
        lambda: torch.cuda.Event(enable_timing=True),
        lambda: torch.accelerator.synchronize(),
    ],
)
def test_first_device_use_in_a_cpu_cell_is_refused_with_the_remedy(use: Callable[[], object]) -> None:
    with pytest.raises(PreconditionFailed, match="%%gpu") as caught:
        use()
    assert caught.value.reason == "CUDA_IN_CPU_CELL"
    assert "Nothing was lost" in caught.value.message


def _file_of(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_refused_move_leaves_the_module_as_it_was() -> None:
    model = nn.Linear(2, 2)
    before = model.weight
    with pytest.raises(PreconditionFailed):
        model.to("cuda")
    assert model.weight is before


def test_refusal_reaches_other_threads() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            torch.zeros(1, device="cuda")
        except PreconditionFailed as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert len(caught) == 1


def test_file_with_device_tensors_is_refused_unless_mapped_to_the_host() -> None:
    buffer = _saved_on_device()
    with pytest.raises(PreconditionFailed, match="CUDA_IN_CPU_CELL"):
        torch.load(buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu").tolist() == [1, 1]


def test_questions_are_answered_for_the_pool() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert device == torch.device("cuda")
    assert torch.cuda.device_count() == 2
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name(1) == "LooseLeaf Virtual GPU"
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties("cuda").total_memory == devices.VIRTUAL_MEMORY_BYTES
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.is_initialized()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.version.cuda == "12.8"
    assert torch.backends.cudnn.is_available()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark = False
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.get_device_name(2)
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device(0)


def test_seeds_set_in_the_kernel_reach_a_worker() -> None:
    torch.manual_seed(11)
    torch.cuda.manual_seed_all(12)
    state = devices.device_state()
    with torch.random.fork_rng(devices=[0, 1]):
        torch.cuda.manual_seed(1)
    assert devices.device_state() == state
    devices.install("worker", "emulated", 2)
    devices.apply_device_state(state)
    from_kernel = torch.rand(3, device="cuda:1")
    torch.cuda.manual_seed_all(12)
    assert torch.equal(torch.rand(3, device="cuda:1"), from_kernel)


def test_cpu_training_runs_as_without_looseleaf() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2, pin_memory=True)
    scaler = torch.amp.GradScaler("cuda")
    assert scaler.is_enabled()
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.weight.to("cpu") is model.weight
    assert model.weight.to(torch.float64).dtype == torch.float64
    assert model.weight.type() == "torch.FloatTensor"
    assert torch._C._len_torch_function_stack() == 0


def test_small_device_value_may_be_read_and_not_used() -> None:
    loss = torch.tensor([1.5, 2.5])
    devices.backend().to_device(loss.untyped_storage(), "cuda:0")
    assert loss.device == torch.device("cuda", 0)
    assert loss[0].item() == 1.5
    assert float(loss[1]) == 2.5
    assert repr(loss) == "tensor([1.5000, 2.5000], device='cuda:0')"
    assert f"{loss[0]:.2f}" == "1.50"
    assert loss.tolist() == [1.5, 2.5]
    assert loss.cpu().numpy().tolist() == [1.5, 2.5]
    assert loss.detach().to("cpu").device.type == "cpu"
    assert len(loss) == 2
    assert [value.item() for value in loss] == [value.tolist() for value in loss.unbind()] == [1.5, 2.5]
    assert loss[1:].tolist() == loss.view(2, 1).T[0, 1:].tolist() == loss.split(1)[1].tolist() == [2.5]
    assert next(iter(loss)).device == loss.unsqueeze(0).squeeze().data.device == torch.device("cuda", 0)
    assert f"{loss[0]:.1f} {loss.dtype} {loss.shape[0]}" == "1.5 torch.float32 2"
    for use in (
        lambda: loss + 1,
        lambda: loss.mul_(2),
        lambda: torch.stack([loss, loss]),
        lambda: loss.to("cuda:1"),
        lambda: loss.copy_(torch.ones(2)),
        lambda: loss.__setitem__(0, 1.0),
        lambda: torch.ones(2).cuda(),
    ):
        with pytest.raises(PreconditionFailed, match="CUDA_IN_CPU_CELL"):
            use()
    assert loss.tolist() == [1.5, 2.5]
    assert (torch.ones(2) + 1).tolist() == [2, 2]


def test_backend_of_a_kernel_reports_no_touch_and_no_residency() -> None:
    backend = devices.backend()
    assert backend.kind == "emulated"
    assert backend.touched() is None
    assert backend.resident_bytes() == {}
    assert isinstance(backend, devices.DeviceBackend)


def test_memory_of_the_pool_s_gpu_is_told_less_what_the_session_keeps_there() -> None:
    total = devices.VIRTUAL_MEMORY_BYTES
    assert torch.cuda.mem_get_info() == torch.accelerator.get_memory_info() == (total, total)
    devices.install("kernel", "emulated", 2, session_bytes=lambda index: (3 << 20) * index)
    assert torch.cuda.mem_get_info("cuda:1") == (total - (4 << 20), total)
    assert torch.cuda.mem_get_info(0) == (total, total)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.mem_get_info(2)


def test_kernel_of_real_gpus_tells_what_their_driver_told() -> None:
    gpu = GpuDescription("NVIDIA H200", 141 << 30, 9, 0, 132, "12.8", "570.1", 50 << 20, 2048, 232448)
    devices.install("kernel", "cuda", 1, description=gpu)
    properties = torch.cuda.get_device_properties(0)
    assert (properties.name, properties.multi_processor_count) == ("NVIDIA H200", 132)
    assert (properties.total_memory, torch.cuda.get_device_capability()) == (141 << 30, (9, 0))
    assert torch.cuda.get_device_name() == "NVIDIA H200" and torch.cuda.mem_get_info() == (141 << 30, 141 << 30)


def test_casting_and_scaling_for_cuda_do_on_the_host_what_they_do_beside_a_real_gpu() -> None:
    with torch.autocast("cuda"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    loss = torch.ones((), requires_grad=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale(loss).backward()
    assert loss.grad is not None and float(loss.grad) == 4.0


def test_kernel_of_real_gpus_refuses_alike() -> None:
    devices.install("kernel", "cuda", 3)
    assert torch.cuda.device_count() == 3
    with pytest.raises(PreconditionFailed, match="CUDA_IN_CPU_CELL"):
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("kind", ["torch.DoubleTensor", torch.DoubleTensor, torch.HalfTensor, "torch.FloatTensor"])
@pytest.mark.parametrize("role", ["kernel", "worker", "reference"])
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_default_tensor_type_of_the_host_is_taken_in_every_role(role: str, kind: object) -> None:
    devices.install(role, "emulated", 1)  # type: ignore[arg-type]
    name = kind if isinstance(kind, str) else f"torch.{kind.__name__}"  # type: ignore[attr-defined]
    wanted = {"Double": torch.float64, "Half": torch.float16, "Float": torch.float32}[name[6:-6]]
    try:
        torch.set_default_tensor_type(kind)  # type: ignore[arg-type]
        assert (torch.get_default_dtype(), torch.ones(1).dtype) == (wanted, wanted)
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).dtype is torch.float32
