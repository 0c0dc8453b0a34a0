"""Reading what device a torch call asks for.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from looseleaf.devices.virtual import VirtualGpus

torch: Any = importlib.import_module("torch")
_device_context: Any = importlib.import_module("torch.utils._device")
_function_stack_size = torch._C._len_torch_function_stack
_function_stack_at = torch._C._get_function_stack_at

# Answers of `requested`: a device index >= 0 is a virtual GPU.
HOST: Final = -1
ELSEWHERE: Final = -2  # meta and other real devices: left to torch


def requested(gpus: VirtualGpus, device: Any) -> int:
    """The index of the virtual GPU that `device` (str, int, torch.device) means, HOST or ELSEWHERE.

    Raises torch.AcceleratorError or RuntimeError, as CUDA does, for an index that no device has.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return checked(gpus, device)
    if not isinstance(device, torch.device):
        device = torch.device(device)
    kind = device.type
    if kind == "cpu":
        return HOST
    if kind != "cuda":
        return ELSEWHERE
    index = device.index
    return gpus.current if index is None else checked(gpus, index)


def checked(gpus: VirtualGpus, index: int) -> int:
    """`index`, if there is such a device."""
    if not 0 <= index < gpus.count:
        error = getattr(torch, "AcceleratorError", RuntimeError)
        raise error(
            "CUDA error: invalid device ordinal\n"
            f"There are {gpus.count} virtual GPUs here, cuda:0 to cuda:{gpus.count - 1}; cuda:{index} was asked for."
        )
    return index


def is_device(value: Any) -> bool:
    """Whether a positional argument of `Tensor.to` names a device and not a dtype or a tensor."""
    return isinstance(value, (str, torch.device)) or (isinstance(value, int) and not isinstance(value, bool))


def default_device() -> Any | None:
    """The device of the default-device mode of this thread, if one lies below the running mode."""
    if _device_context.CURRENT_DEVICE is None:
        return None
    for level in range(_function_stack_size()):
        mode = _function_stack_at(level)
        if isinstance(mode, _device_context.DeviceContext):
            return mode.device
    return None


def cuda_type_name(dtype: Any, index: int | None) -> str:
    """Such as "torch.cuda.FloatTensor"."""
    name = _TYPE_NAMES.get(dtype, "FloatTensor")
    return f"torch.{name}" if index is None else f"torch.cuda.{name}"


_TYPE_NAMES: dict[Any, str] = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.uint8: "ByteTensor", torch.int8: "CharTensor",
    torch.int16: "ShortTensor", torch.int32: "IntTensor", torch.int64: "LongTensor", torch.bool: "BoolTensor",
    torch.complex64: "ComplexFloatTensor", torch.complex128: "ComplexDoubleTensor",
}
DTYPES: dict[str, Any] = {name: dtype for dtype, name in _TYPE_NAMES.items()}
