"""Where an array of any library lies: through DLPack or `__cuda_array_interface__`, without that library's headers."""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from looseleaf.errors import InvalidArgument, Unsupported

# Numbers of DLPack's device types. Pinned and managed memory are the host's to read.
_HOST_TYPES: Final = {1, 3, 13}
_CUDA_TYPE: Final = 2
CPU: Final = "cpu"
# CUDA arrays may still be written by work in any stream; the tracker waits for the whole device itself.
_NO_STREAM: Final = -1
_READ_ONLY: Final = 1
_VERSION_MAX: Final = (1, 0)


class Span(NamedTuple):
    """The bytes from the first to the last element of an array, gaps of its strides included.

    `device`: "cpu" or "cuda:N". `owner` keeps the memory alive.
    """

    address: int
    size_bytes: int
    device: str
    is_readonly: bool
    owner: Any


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _VersionedManaged(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def span_of(array: Any) -> Span:
    """Where `array` lies, whose memory its owner may still be writing: what reads it waits for the device first.

    Raises InvalidArgument `NOT_AN_ARRAY` for an object of neither protocol, Unsupported `DEVICE_KIND` for another kind
    of device, and what the object itself raises.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _span_of_interface(array, interface)
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        text = f"{type(array).__name__} has neither __cuda_array_interface__ nor __dlpack__"
        raise InvalidArgument("NOT_AN_ARRAY", text)
    kind, number = (int(part) for part in array.__dlpack_device__())
    if kind != _CUDA_TYPE and kind not in _HOST_TYPES:
        raise Unsupported("DEVICE_KIND", f"memory of DLPack's device type {kind} cannot be tracked", kind=kind)
    capsule = _capsule_of(array, _NO_STREAM if kind == _CUDA_TYPE else None)
    tensor, is_readonly = _content(capsule)
    strides = None if not tensor.strides else tensor.strides[: tensor.ndim]
    item_bits = tensor.dtype.bits * tensor.dtype.lanes
    first = (tensor.data or 0) + tensor.byte_offset
    low, size = _extent(tensor.shape[: tensor.ndim], strides, item_bits)
    device = f"cuda:{number}" if kind == _CUDA_TYPE else CPU
    # A capsule that nobody takes over frees its tensor with itself.
    return Span(first + low, size, device, is_readonly, capsule)


def _span_of_interface(array: Any, interface: dict[str, Any]) -> Span:
    first, is_readonly = interface["data"]
    item_bytes = int(interface["typestr"][2:])
    strides = interface.get("strides")
    in_items = None if strides is None else [stride / item_bytes for stride in strides]
    low, size = _extent(interface["shape"], in_items, item_bytes * 8)
    device = _device_at(first) if size else "cuda:0"
    return Span(first + low if size else 0, size, device, bool(is_readonly), array)


def _device_at(address: int) -> str:
    try:
        return f"cuda:{_cuda_device_of(address)}"
    except InvalidArgument as error:
        if error.reason == "MANAGED_MEMORY":
            # Reading it on the device would move its pages there.
            return CPU
        raise


def _cuda_device_of(address: int) -> int:
    try:
        module = importlib.import_module("looseleaf.dirty_tracker._cuda")
    except ImportError as error:
        raise Unsupported("NO_CUDA_BUILD", f"this build of looseleaf has no CUDA part ({error})") from error
    return int(module.device_of(address))


def _capsule_of(array: Any, stream: int | None) -> Any:
    try:
        return array.__dlpack__(stream=stream, max_version=_VERSION_MAX)
    except TypeError:
        # From before DLPack 1.0.
        return array.__dlpack__(stream=stream)


def _content(capsule: Any) -> tuple[_Tensor, bool]:
    if _is_capsule(capsule, b"dltensor_versioned"):
        managed = _VersionedManaged.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major > _VERSION_MAX[0]:
            raise Unsupported("DEVICE_KIND", f"DLPack {managed.major}.{managed.minor} is not known here")
        return managed.tensor, bool(managed.flags & _READ_ONLY)
    return _Managed.from_address(_pointer_of(capsule, b"dltensor")).tensor, False


def _extent(shape: Sequence[int], strides: Sequence[float] | None, item_bits: int) -> tuple[int, int]:
    """Offset of the lowest byte from the first element, and the number of bytes up to the highest one."""
    if any(count == 0 for count in shape):
        return 0, 0
    if strides is None:
        return 0, -(-math.prod(shape) * item_bits // 8)
    steps = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    low = math.floor(sum(step for step in steps if step < 0) * item_bits / 8)
    high = math.ceil((sum(step for step in steps if step > 0) + 1) * item_bits / 8)
    return low, high - low
