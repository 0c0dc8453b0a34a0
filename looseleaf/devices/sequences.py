"""Recurrent networks on virtual devices: lengths and batch sizes live on the host even there.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.tags import index_of, tag_tensor

torch: Any = importlib.import_module("torch")
_VF = torch._VF
Tensor = torch.Tensor


def handlers(mode: VirtualDeviceMode) -> dict[Any, Handler]:
    """By torch function."""

    def pack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(args[1], Tensor) and (at := index_of(args[1])) is not None:
            raise RuntimeError(
                f"'lengths' argument should be a 1D CPU int64 tensor, but got {args[1].dim()}D cuda:{at} Long tensor"
            )
        return pad(func, args, kwargs)

    def pad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = index_of(args[0])
        result = func(*args, **kwargs)
        if index is not None:
            mode.use()
            tag_tensor(mode.gpus, result[0], index)
        return result

    def recurrent(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, weights = index_of(args[0]), _weights_index(args[1:])
        if own != weights:
            raise RuntimeError(
                "Input and parameter tensors are not at the same device, "
                f"found input tensor at {_name(own)} and parameter tensor at {_name(weights)}"
            )
        return mode.call(func, args, kwargs)

    return {
        _VF._pack_padded_sequence: pack,
        _VF._pad_packed_sequence: pad,
        _VF.lstm: recurrent,
        _VF.gru: recurrent,
        _VF.rnn_tanh: recurrent,
        _VF.rnn_relu: recurrent,
    }


def _weights_index(values: Any) -> int | None:
    """The device of the weights: the last list of tensors among the arguments."""
    for value in reversed(values):
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return index_of(value[0])
    return None


def _name(index: int | None) -> str:
    return "cpu" if index is None else f"cuda:{index}"
