"""Where arrays of other libraries lie. Host arrays stand for device arrays: the protocols are the same."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.dirty_tracker import device_memory
from looseleaf.dirty_tracker.device_memory import span_of
from looseleaf.errors import InvalidArgument, Unsupported


def bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    low, high = np.lib.array_utils.byte_bounds(array)
    return low, high - low


class CudaArray:
    """What cupy and numba arrays show, over host memory."""

    def __init__(self, array: np.ndarray[Any, Any], with_strides: bool = True) -> None:
        interface = array.__array_interface__
        strides = array.strides if with_strides else None
        self.__cuda_array_interface__ = {**interface, "strides": strides, "version": 3, "stream": 1}


VIEWS = {
    "whole": lambda a: a,
    "row": lambda a: a[2],
    "inner": lambda a: a[1:3, 2:4],
    "every second": lambda a: a[::2, ::3],
    "reversed": lambda a: a[::-1, ::-2],
    "transposed": lambda a: a.T[1:],
    "scalar": lambda a: a[1:2, 1:2].reshape(()),
    "broadcast": lambda a: np.broadcast_to(a[0], (7, 6)),
}


@pytest.mark.parametrize("view", list(VIEWS))
@pytest.mark.parametrize("dtype", ["u1", "f8", "c16"])
def test_span_of_numpy_view_is_its_byte_bounds(view: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_cuda_device_of", lambda address: 3)
    array = VIEWS[view](np.arange(30).reshape(5, 6).astype(dtype))
    by_dlpack, by_interface = span_of(array), span_of(CudaArray(array))
    assert by_dlpack[:3] == (*bounds(array), "cpu")
    assert by_interface[:3] == (*bounds(array), "cuda:3")
    assert by_interface.is_readonly == (not array.flags.writeable)


@given(start=st.integers(0, 20), stop=st.integers(0, 20), step=st.sampled_from([1, 2, 5]), offset=st.integers(0, 3))
def test_span_of_torch_view_is_where_its_elements_are(start: int, stop: int, step: int, offset: int) -> None:
    tensor = torch.arange(100, dtype=torch.int16)[offset:].view(-1)[start:stop:step]
    span = span_of(tensor)
    elements = [tensor[i].data_ptr() for i in range(len(tensor))]
    expected = elements[-1] + 2 - elements[0] if elements else 0
    assert span.size_bytes == expected
    if elements:
        assert span.address == elements[0]


def test_span_of_empty_arrays_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_cuda_device_of", lambda address: pytest.fail("there is no address to ask for"))
    for array in (np.empty((0, 3)), np.empty((3, 0))[::-1]):
        assert span_of(array).size_bytes == 0
        assert span_of(CudaArray(array)).size_bytes == 0


def test_span_of_contiguous_interface_may_leave_out_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_cuda_device_of", lambda address: 0)
    array = np.arange(12.0).reshape(3, 4)
    assert span_of(CudaArray(array, with_strides=False))[:2] == bounds(array)


def test_span_of_managed_memory_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["MANAGED_MEMORY", "NOT_DEVICE_MEMORY"])

    def refuses(address: int) -> int:
        raise InvalidArgument(next(reasons), "as the tracker says")

    monkeypatch.setattr(device_memory, "_cuda_device_of", refuses)
    array = np.arange(12.0)[::-3]
    assert span_of(CudaArray(array))[:3] == (*bounds(array), "cpu")
    with pytest.raises(InvalidArgument, match="NOT_DEVICE_MEMORY"):
        span_of(CudaArray(array))


def test_span_of_readonly_array_says_so() -> None:
    array = np.arange(5)
    assert not span_of(array).is_readonly
    array.flags.writeable = False
    try:
        span = span_of(array)
    except BufferError:
        pytest.skip("this numpy exports no read-only arrays")
    assert span.is_readonly


def test_span_keeps_the_memory_alive_and_lets_it_go() -> None:
    class Watched(np.ndarray[Any, Any]):
        pass

    array = np.arange(1000).view(Watched)
    gone = weakref.ref(array)
    span = span_of(array)
    del array
    gc.collect()
    assert gone() is not None
    del span
    gc.collect()
    assert gone() is None


def test_span_of_array_from_before_dlpack_1_works() -> None:
    class Old:
        def __init__(self) -> None:
            self.tensor = torch.arange(4)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, stream: int | None = None) -> Any:
            return self.tensor.__dlpack__()

    old = Old()
    assert span_of(old)[:2] == (old.tensor.data_ptr(), 32)


def test_span_of_cuda_array_asks_for_no_stream() -> None:
    asked = []

    class Cuda:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 1)

        def __dlpack__(self, stream: int | None = None, max_version: Any = None) -> Any:
            asked.append(stream)
            return torch.arange(4).__dlpack__()

    assert span_of(Cuda()).device == "cuda:1"
    assert asked == [-1]


def test_span_of_other_things_is_refused() -> None:
    class Rocm:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (10, 0)

        def __dlpack__(self, stream: int | None = None) -> Any:
            raise AssertionError

    with pytest.raises(InvalidArgument, match="NOT_AN_ARRAY"):
        span_of([1, 2])
    with pytest.raises(Unsupported, match="DEVICE_KIND"):
        span_of(Rocm())
