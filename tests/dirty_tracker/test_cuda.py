"""The device side: its checks run wherever it was built, the kernels only on a real GPU."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from looseleaf.dirty_tracker import build_info, compare_regions
from looseleaf.errors import InvalidArgument, Unsupported


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


def test_cuda_call_without_a_device_names_call_place_and_code(cuda: ModuleType) -> None:
    if cuda.device_count():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(Unsupported, match="NO_CUDA_DEVICE") as caught:
        cuda.compare_regions(4096, 8192, 100, 10)
    fields = caught.value.fields
    assert fields["call"].startswith("cudaPointerGetAttributes(")
    assert "device_regions.cu:" in fields["place"]
    assert fields["code"] > 0
    assert fields["code_name"].startswith("cudaError")


def test_cuda_malformed_arguments_are_refused_before_any_cuda_call(cuda: ModuleType) -> None:
    assert cuda.compare_regions(0, 0, 0, 10) == []
    assert cuda.copy_regions_to_host(0, 100, 10, [], bytearray()) == 0
    with pytest.raises(InvalidArgument, match="REGION_BYTES_OUT_OF_RANGE"):
        cuda.compare_regions(4096, 8192, 100, 0)
    for indices in ([10], [3, 3], [4, 2]):
        with pytest.raises(InvalidArgument, match="REGIONS_MALFORMED"):
            cuda.copy_regions_to_host(4096, 100, 10, indices, bytearray(100))
    with pytest.raises(InvalidArgument, match="RANGE_OUTSIDE_BUFFER"):
        cuda.copy_regions_to_host(4096, 95, 10, [0, 9], bytearray(14))
    with pytest.raises(InvalidArgument, match="BUFFER_NOT_WRITABLE"):
        cuda.copy_regions_to_host(4096, 100, 10, [1], bytes(10))


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 16, 1])
@pytest.mark.parametrize("region_bytes", [1 << 12, 1000, 1001])
def test_cuda_compare_random_writes_equals_the_host(cuda: ModuleType, offset: int, region_bytes: int) -> None:
    import torch

    random = np.random.default_rng(region_bytes + offset)
    for size_bytes in (1, 15, 4096, 100_003):
        old = torch.from_numpy(random.integers(0, 256, size_bytes + offset, dtype=np.uint8)).cuda()
        new = old.clone()
        for at in random.integers(0, size_bytes, 5):
            new[offset + int(at)] += 1
        torch.cuda.synchronize()
        pointers = (new.data_ptr() + offset, old.data_ptr() + offset)
        found = cuda.compare_regions(*pointers, size_bytes, region_bytes)
        assert found == compare_regions(new.cpu().numpy()[offset:], old.cpu().numpy()[offset:], region_bytes)


@pytest.mark.gpu
def test_cuda_compare_on_a_side_stream_sees_the_work_before_it(cuda: ModuleType) -> None:
    import torch

    old = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    new = old.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            new.add_(1)
        found = cuda.compare_regions(new.data_ptr(), old.data_ptr(), new.nbytes, 2 << 20, stream.cuda_stream)
    assert found == list(range(32))


@pytest.mark.gpu
def test_cuda_copied_regions_arrive_packed(cuda: ModuleType) -> None:
    import torch

    source = torch.arange(10_000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    target = bytearray(source.nbytes)
    indices = [0, 1, 5, 9]
    copied = cuda.copy_regions_to_host(source.data_ptr(), source.nbytes, 4096, indices, target)
    content = source.cpu().numpy().tobytes()
    expected = b"".join(content[i * 4096 : (i + 1) * 4096] for i in indices)
    assert bytes(target[:copied]) == expected


@pytest.mark.gpu
def test_cuda_host_address_is_refused(cuda: ModuleType) -> None:
    array = np.zeros(100, dtype=np.uint8)
    with pytest.raises(InvalidArgument, match="NOT_DEVICE_MEMORY"):
        cuda.compare_regions(array.ctypes.data, array.ctypes.data, 100, 10)
