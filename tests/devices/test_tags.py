"""Tags belong to a storage's life, never to its address."""

from __future__ import annotations

import gc
import pickle
import threading

import pytest
import torch

from looseleaf import devices
from looseleaf.devices.tags import index_of, storage_index

pytestmark = pytest.mark.usefixtures("virtual")


def test_memory_reused_after_a_free_carries_no_tag() -> None:
    reused = 0
    addresses: set[int] = set()
    for turn in range(5000):
        tensor = torch.empty(64, device="cuda")
        addresses.add(tensor.data_ptr())
        del tensor
        fresh = torch.empty(64)
        reused += fresh.data_ptr() in addresses
        assert fresh.device.type == "cpu", turn
        assert storage_index(fresh.untyped_storage()) is None
        del fresh
    assert reused, "the test is about memory that is used again"
    assert devices.resident_bytes() == {}


def test_tag_outlives_every_python_reference_to_the_storage() -> None:
    tensor = torch.ones(3, device="cuda")
    view = tensor.view(3)[1:]
    storage = tensor.untyped_storage()
    del tensor, storage
    gc.collect()
    assert view.device == torch.device("cuda", 0)
    keeper = (view * torch.ones(2, device="cuda", requires_grad=True)).sum()
    del view
    gc.collect()
    keeper.backward()


def test_tag_survives_in_c_plus_plus_alone() -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)
    product = (weight * 2) ** 2
    gc.collect()
    saved = product.grad_fn._saved_self
    assert saved.device == torch.device("cuda", 0)


def test_live_bytes_follow_allocations_and_frees() -> None:
    assert torch.cuda.memory_allocated() == 0
    kept = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated() == 4096
    other = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda:1")
    assert devices.resident_bytes() == {"cuda:0": 4096, "cuda:1": 1 << 20}
    view = kept[10:]
    del kept
    assert torch.cuda.memory_allocated() == 4096
    del view, other
    assert devices.resident_bytes() == {}
    assert torch.cuda.max_memory_allocated() == 4096
    assert torch.cuda.memory_reserved() == 2 << 20
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_reserved() == 0


def test_live_bytes_are_exact_when_threads_allocate_and_free() -> None:
    def work() -> None:
        for _ in range(300):
            torch.zeros(100, device="cuda")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert torch.cuda.memory_allocated() == 0
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 1200


def test_full_device_raises_out_of_memory_and_recovers() -> None:
    devices.install("worker", "emulated", 2, memory_bytes=64 << 20)
    kept = torch.empty(44 << 20, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total"):
        torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    torch.empty(32 << 20, dtype=torch.uint8, device="cuda:1")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        kept + kept
    del kept
    torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    assert free <= total == 64 << 20
    torch.cuda.set_per_process_memory_fraction(0.1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(20 << 20, dtype=torch.uint8, device="cuda")


def test_host_that_has_no_memory_left_raises_out_of_memory_for_the_device() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_are_tagged_by_their_parts() -> None:
    sparse = torch.eye(3, device="cuda").to_sparse()
    assert index_of(sparse) == 0
    assert (sparse * 2).coalesce().values().device.type == "cuda"
    assert sparse.cpu().device.type == "cpu"
    assert sparse.to_sparse_csr().device.type == "cuda"
    assert sparse.to_dense().is_cuda
    assert sparse.t().device.type == "cuda"


def test_tensor_subclass_keeps_its_device() -> None:
    class Named(torch.Tensor):
        pass

    named = torch.ones(2).as_subclass(Named).cuda()
    assert type(named) is Named
    assert named.device.type == "cuda"
    assert (named + 1).device.type == "cuda"
    assert type(named + 1) is Named
    assert named.cpu().device.type == "cpu"


def test_several_devices_do_not_mix() -> None:
    first, second = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        first + second
    moved = first.to("cuda:1")
    assert (moved + second).device == torch.device("cuda", 1)
    assert moved.data_ptr() != first.data_ptr()
    first.copy_(second * 3)
    assert first.tolist() == [3, 3]
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device.index == 1
        assert torch.zeros(1).cuda().device.index == 1
    torch.cuda.set_device(1)
    assert torch.zeros(1, device="cuda").device.index == 1
    torch.cuda.set_device(0)
    with torch.cuda.device_of(second):
        assert torch.cuda.current_device() == 1


def test_default_generators_are_the_devices_own() -> None:
    first = pickle.loads(pickle.dumps(torch.cuda.default_generators[0]))
    first.manual_seed(5)
    drawn = torch.rand(2, device="cuda:0")
    assert torch.cuda.initial_seed() == first.initial_seed() == 5
    state = first.get_state()
    torch.rand(1, device="cuda:0")
    first.set_state(state)
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.rand(2, device="cuda:0"), drawn)
    with pytest.raises(RuntimeError, match="wrong size"):
        first.set_state(torch.zeros(3, dtype=torch.uint8))


def test_optimizer_groups_tensors_by_virtual_device() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, device=f"cuda:{index}")) for index in (0, 1)]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    sum(parameter.sum().cpu() for parameter in parameters).backward()
    optimizer.step()
    assert [parameter.device.index for parameter in parameters] == [0, 1]
    assert parameters[0].tolist() == parameters[1].tolist() == pytest.approx([0.9, 0.9])
