"""The device side: its checks run wherever it was built, the kernels only on a real GPU.

Everything between the kernels and Python is tested without CUDA by `make native-test`, over a device of plain memory.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from looseleaf.dirty_tracker import build_info, compare_regions, region_fingerprints
from looseleaf.errors import InvalidArgument, Unsupported

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "csrc/dirty_tracker/device_kernels.cu"
ARCHITECTURES = ("75", "80", "86", "89", "90")
# What the gate compiles for once more.
ENDS = (ARCHITECTURES[0], ARCHITECTURES[-1])
SECRET = bytes(range(32))
NVCC = shutil.which("nvcc")


@pytest.fixture
def cuda() -> ModuleType:
    if not build_info()["built_with_cuda"]:
        pytest.skip("this build has no CUDA part (no nvcc when it was built)")
    from looseleaf.dirty_tracker import _cuda

    return _cuda


def test_cuda_device_state_without_a_device_says_why(cuda: ModuleType) -> None:
    count, why_none = cuda.device_state()
    assert count == cuda.device_count() >= 0
    assert bool(why_none) == (count == 0)


@pytest.mark.parametrize("use", ["open", "address"])
def test_cuda_call_without_a_device_names_call_place_and_code(cuda: ModuleType, use: str) -> None:
    if cuda.device_count():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(Unsupported, match="NO_CUDA_DEVICE") as caught:
        cuda.DeviceTracker(0, SECRET) if use == "open" else cuda.device_of(4096)
    fields = caught.value.fields
    assert fields["call"].startswith("cudaGetDevice(" if use == "open" else "cudaPointerGetAttributes(")
    assert re.search(r"cuda_(device\.h|stream\.cpp):\d+$", fields["place"])
    assert fields["code"] > 0
    assert fields["code_name"].startswith("cudaError")


def test_cuda_malformed_secret_is_refused_before_any_cuda_call(cuda: ModuleType) -> None:
    with pytest.raises(InvalidArgument, match="SECRET_LENGTH"):
        cuda.DeviceTracker(0, b"short")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "architectures", [ENDS, pytest.param(ARCHITECTURES, marks=pytest.mark.soak)], ids=["ends", "all"]
)
def test_cuda_kernels_use_no_local_memory_on_any_architecture(
    architectures: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if NVCC is None:
        pytest.skip("nvcc is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import kernel_resources

    found = kernel_resources.resources(NVCC, architectures)
    names = ("fingerprint", "select", "gather", "compare")
    assert found.keys() == {(name, arch) for name in names for arch in architectures}
    for kernel, used in found.items():
        assert (used.stack_bytes, used.spill_bytes) == (0, 0), kernel
        # Four blocks of 256 threads on a processor with 65,536 registers.
        assert used.registers <= 64, kernel
    assert len(kernel_resources.table(found)) == 2 + len(names)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=[] if arch in ENDS else [pytest.mark.soak]) for arch in ARCHITECTURES]
)
def test_cuda_kernels_load_16_bytes_at_a_time(arch: str) -> None:
    if NVCC is None:
        pytest.skip("nvcc is not installed")
    command = [NVCC, "-ptx", str(KERNELS), "-o", "-", "-std=c++17", "-O3", f"-arch=compute_{arch}"]
    ptx = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout
    wide = {}
    for name in ("fingerprint", "gather", "compare"):
        body = re.search(rf"\.entry \S*{name}_kernel(.*?)(?=\.entry|\Z)", ptx, re.DOTALL)
        assert body is not None
        wide[name] = len(re.findall(r"ld\.global\S*\.v4\.u32", body[1]))
    # A lane's 32 vectors, unrolled; at least four for a copy, and four on each side of a comparison.
    assert wide["fingerprint"] == 32
    assert wide["gather"] >= 4
    assert wide["compare"] >= 8


@pytest.fixture
def tracker(cuda: ModuleType) -> Any:
    return cuda.DeviceTracker(0, SECRET, slots=2, slot_bytes=1 << 20)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 16, 1])
@pytest.mark.parametrize("region_bytes", [1 << 12, 1000, 50_001, 2 << 20])
def test_cuda_tables_and_compare_equal_the_hosts(tracker: Any, offset: int, region_bytes: int) -> None:
    import torch

    random = np.random.default_rng(region_bytes + offset)
    for size_bytes in (1, 15, 4096, 100_003, 3_000_000):
        old = torch.from_numpy(random.integers(0, 256, size_bytes + offset, dtype=np.uint8)).cuda()
        new = old.clone()
        for at in random.integers(0, size_bytes, 5):
            new[offset + int(at)] += 1
        on_host = new.cpu().numpy()[offset:], old.cpu().numpy()[offset:]
        spans = [[(tensor.data_ptr() + offset, size_bytes)] for tensor in (new, old)]
        changed = compare_regions(*on_host, region_bytes)
        last = region_fingerprints(on_host[1], SECRET, region_bytes=region_bytes)
        ((table, dirty),) = tracker.tables(spans[0], [last], region_bytes)
        assert table == region_fingerprints(on_host[0], SECRET, region_bytes=region_bytes)
        assert dirty == changed
        assert tracker.compare(*spans, region_bytes) == [changed]


@pytest.mark.gpu
def test_cuda_tables_see_work_of_a_side_stream(tracker: Any) -> None:
    import torch

    tensor = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    ((last, _),) = tracker.tables([(tensor.data_ptr(), tensor.nbytes)], [b""], 2 << 20)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            tensor.add_(1)
    ((_, dirty),) = tracker.tables([(tensor.data_ptr(), tensor.nbytes)], [last], 2 << 20)
    assert dirty == list(range(32))


@pytest.mark.gpu
def test_cuda_moves_of_any_size_arrive(tracker: Any) -> None:
    import torch

    source = torch.randint(0, 256, (10_000_000,), dtype=torch.uint8, device="cuda")
    content = source.cpu().numpy().tobytes()
    random = np.random.default_rng(1)
    places = [(int(at), int(size)) for at, size in random.integers(0, 3_000_000, (60, 2))]
    places += [(int(at), int(size)) for at, size in random.integers(0, 1000, (60, 2))]
    targets = [bytearray(size) for _, size in places]
    tracker.move_to_host([(source.data_ptr() + at, to) for (at, _), to in zip(places, targets, strict=True)])
    for (at, size), target in zip(places, targets, strict=True):
        assert target == content[at : at + size]


@pytest.mark.gpu
def test_cuda_host_address_is_refused(cuda: ModuleType) -> None:
    with pytest.raises(InvalidArgument, match="NOT_DEVICE_MEMORY"):
        cuda.device_of(np.zeros(100, dtype=np.uint8).ctypes.data)
