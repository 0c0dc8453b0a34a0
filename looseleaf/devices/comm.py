"""Copies between several devices that torch makes in C++ of its CUDA build: broadcast, scatter, gather (design §8).

`nn.DataParallel`, `nn.parallel.replicate` and `torch.nn.parallel.comm` are made of them.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")


def _device(index: int) -> Any:
    return torch.device("cpu") if index < 0 else torch.device("cuda", index)


def broadcast(tensor: Any, devices: Any) -> list[Any]:
    """A copy on each device; the tensor itself on its own."""
    return [tensor.to(_device(index)) for index in devices]


def broadcast_coalesced(tensors: Any, devices: Any, buffer_bytes: int) -> list[list[Any]]:
    """For each device the list of copies."""
    return [[tensor.to(_device(index)) for tensor in tensors] for index in devices]


def broadcast_out(tensor: Any, out: Any) -> list[Any]:
    """Copies into `out`."""
    for one in out:
        one.copy_(tensor)
    return list(out)


def scatter(tensor: Any, devices: Any, chunk_sizes: Any = None, dim: int = 0, streams: Any = None) -> tuple[Any, ...]:
    """A chunk on each device; fewer if there are fewer chunks."""
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return tuple(chunk.to(_device(index)) for chunk, index in zip(chunks, devices, strict=False))


def scatter_out(tensor: Any, out: Any, dim: int = 0, streams: Any = None) -> tuple[Any, ...]:
    """Chunks into `out`."""
    for one, chunk in zip(out, tensor.split([one.shape[dim] for one in out], dim), strict=True):
        one.copy_(chunk)
    return tuple(out)


def gather(tensors: Any, dim: int, destination: int | None) -> Any:
    """All in one, on device `destination`; -1 is the host, None the current device."""
    index = torch.cuda.current_device() if destination is None else destination
    return torch.cat([tensor.to(_device(index)) for tensor in tensors], dim)


def gather_out(tensors: Any, out: Any, dim: int) -> Any:
    """All into `out`."""
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def comm_answers() -> dict[str, Callable[..., Any]]:
    """By the name in `torch._C`."""
    return {
        "_broadcast": broadcast, "_broadcast_coalesced": broadcast_coalesced, "_broadcast_out": broadcast_out,
        "_scatter": scatter, "_scatter_out": scatter_out, "_gather": gather, "_gather_out": gather_out,
    }
