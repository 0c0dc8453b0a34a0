"""Functions that compare their arguments' devices before any operator runs, and what each says on CUDA (design §8).

These checks are C++ code that sees host memory here, so they are made in its place.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.mismatches import device_name
from looseleaf.devices.requests import cuda_type_name
from looseleaf.devices.tags import index_of

torch: Any = importlib.import_module("torch")
Tensor = torch.Tensor
_F = torch.nn.functional


def check_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError if `func` is such a function and its arguments are on several devices."""
    check = _CHECKS.get(func)
    if check is not None:
        check(args, kwargs)


def _given(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The tensors among the arguments, by name."""
    found = {**dict(zip(names.split(), args, strict=False)), **kwargs}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _given("input weight bias", args, kwargs)
    types = {name: cuda_type_name(tensor.dtype, index_of(tensor)) for name, tensor in given.items()}
    first = types.get("input")
    if types.get("weight", first) != first:
        text = f"Input type ({first}) and weight type ({types['weight']}) should be the same"
        if index_of(given["input"]) is None:
            text += " or input should be a MKLDNN tensor and weight is a dense tensor"
        raise RuntimeError(text)
    if types.get("bias", first) != first:
        raise RuntimeError(f"Input type ({first}) and bias type ({types['bias']}) should be the same")


def _attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _given("query key value", args, kwargs)
    query, key, value = (device_name(index_of(given[name])) for name in ("query", "key", "value"))
    if len({query, key, value}) > 1:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got "
            f"query.device: {query} key.device: {key} and value.device: {value} instead."
        )


def _pair(names: str, text: str) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """A check of two arguments; `text` names their devices as {0} and {1}."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _given(names, args, kwargs)
        first, *_, second = names.split()
        if first in given and second in given and index_of(given[first]) != index_of(given[second]):
            raise RuntimeError(text.format(device_name(index_of(given[first])), device_name(index_of(given[second]))))

    return check


def _all(text: str) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """A check of all tensors; `text` names the first device, and place and device of the one that differs."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = args[0] if args and isinstance(args[0], (list, tuple)) else args
        indices = [index_of(one) for one in tensors if isinstance(one, Tensor)]
        for place, index in enumerate(indices):
            if index != indices[0]:
                raise RuntimeError(text.format(device_name(indices[0]), place, device_name(index)))

    return check


_CHECKS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], None]] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d, _F.conv1d, _F.conv2d, _F.conv3d), _convolution),
    **dict.fromkeys((torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), _convolution),
    **dict.fromkeys((_F.conv_transpose1d, _F.conv_transpose2d, _F.conv_transpose3d), _convolution),
    _F.scaled_dot_product_attention: _attention,
    torch.meshgrid: _all("meshgrid expects all tensors to have the same device"),
    torch.block_diag: _all(
        "torch.block_diag: input tensors must all be on the same device. "
        "Input 0 is on device {0} and input {1} is on device {2}."
    ),
    torch.linalg.multi_dot: _all(
        "multi_dot(): all tensors must be on the same device but tensor 0 is on {0} and tensor {1} on {2}"
    ),
    torch.chain_matmul: _all(
        "multi_dot(): all tensors must be on the same device but tensor 0 is on {0} and tensor {1} on {2}"
    ),
    **dict.fromkeys(
        (torch.quantile, torch.nanquantile, Tensor.quantile, Tensor.nanquantile),
        _pair("input q", "quantile() q tensor must be on the same device as the input tensor"),
    ),
    **dict.fromkeys(
        (torch.stft, Tensor.stft),
        _pair(
            "input n_fft hop_length win_length window",
            "stft input and window must be on the same device but got self on {0} and window on {1}",
        ),
    ),
    **dict.fromkeys(
        (torch.istft, Tensor.istft),
        _pair(
            "input n_fft hop_length win_length window",
            "istft input and window must be on the same device but got self on {0} and window on {1}",
        ),
    ),
    **dict.fromkeys(
        (_F.grid_sample, torch.grid_sampler),
        _pair(
            "input grid",
            "grid_sampler(): expected input and grid to be on same device, but input is on {0} and grid is on {1}",
        ),
    ),
}
