"""Recurrent networks on virtual devices: lengths and batch sizes live on the host even there.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.devices.mismatches import device_name
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
        own, weights, hidden = index_of(args[0]), _weights_index(args), _hidden_indices(args)
        for kind, other in [*(("hidden", one) for one in hidden), ("parameter", weights)]:
            if own != other:
                raise RuntimeError(
                    f"Input and {kind} tensors are not at the same device, "
                    f"found input tensor at {device_name(own)} and {kind} tensor at {device_name(other)}"
                )
        return mode.call(func, args, kwargs)

    def pad_all(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The batch is made beside the first sequence, and the others are copied into it."""
        sequences = args[0] if args else kwargs["sequences"]
        result = func(*args, **kwargs)
        index = index_of(sequences[0]) if sequences and isinstance(sequences[0], Tensor) else None
        if index is not None:
            mode.use()
            tag_tensor(mode.gpus, result, index)
        return result

    return {
        _VF._pack_padded_sequence: pack,
        _VF._pad_packed_sequence: pad,
        torch._C._nn.pad_sequence: pad_all,
        _VF.lstm: recurrent,
        _VF.gru: recurrent,
        _VF.rnn_tanh: recurrent,
        _VF.rnn_relu: recurrent,
    }


def _weights_index(args: tuple[Any, ...]) -> int | None:
    """The device of the weights: the last list of tensors among the arguments."""
    for value in reversed(args[1:]):
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return index_of(value[0])
    return None


def _hidden_indices(args: tuple[Any, ...]) -> list[int | None]:
    """The devices of the hidden states: the argument before the weights, a tensor or a tuple of two.

    A packed input has its batch sizes, a tensor of the host, before them.
    """
    for place, value in enumerate(args):
        if place and isinstance(value, list):
            states = args[place - 1]
            return [index_of(one) for one in (states if isinstance(states, (list, tuple)) else (states,))]
    return []
