"""Tensors as (memory, dtype, offset, shape, strides, flags): views and tied weights share (design §3).

`note_*` and `reduce_*` at save, the other public functions at restore; the latter's names are part of the format.
Everything here runs inside the device backend's raw access.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from looseleaf.checkpoint.by_name import is_session_class
from looseleaf.checkpoint.loaded_memory import check_elements, loaded_memory
from looseleaf.checkpoint.memory import CPU, shared_file_at
from looseleaf.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf.checkpoint.memory import Block, MemoryMap

# Kinds of operations, by the names that tensors show; each has one class.
SHOWN_NAMES_MAX: Final = 1024
# Of torch itself, whatever devices are imitated.
_set_storage: Final[Any] = torch._C.TensorBase.set_
_PLAIN_DISPATCH: Final = torch.Tensor.__torch_dispatch__


def is_plain(value: torch.Tensor) -> bool:
    """True for a dense tensor over one storage; others (sparse, quantized, wrappers) are saved torch's own way."""
    if isinstance(value, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
        return False
    dispatch = type(value).__torch_dispatch__
    if dispatch is not _PLAIN_DISPATCH and dispatch is not torch._C._disabled_torch_dispatch_impl:
        return False
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


def note_tensor(value: torch.Tensor, memory: MemoryMap) -> list[Any]:
    """Tells `memory` where the elements lie; returns the objects that the tensor refers to."""
    # No code of a subclass runs for a question.
    with torch._C.DisableTorchFunctionSubclass():
        hooks = [value._backward_hooks, value._post_accumulate_grad_hooks]
        children: list[Any] = [_attributes(value), _grad(value), *hooks]
        if is_session_class(type(value)):
            children.append(type(value))
        if is_plain(value):
            memory.note_storage(value.untyped_storage(), value)
        else:
            children += _inner_tensors(value)
    return [child for child in children if child is not None]


def _attributes(value: torch.Tensor) -> dict[str, Any] | None:
    return getattr(value, "__dict__", None) or None


def _grad(value: torch.Tensor) -> torch.Tensor | None:
    return value.grad if value.is_leaf or value.retains_grad else None


def _inner_tensors(value: torch.Tensor) -> list[Any]:
    if value.device.type == "meta":
        return []
    if value.layout is torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value.untyped_storage()] if value.is_quantized else []


def note_storage(value: Any, memory: MemoryMap) -> list[Any]:
    """Tells `memory` of a storage that the session holds directly."""
    if isinstance(value, torch.storage.TypedStorage):
        return [value._untyped_storage]
    if value.device.type != "meta":
        memory.note_storage(value, value)
    return []


def reduce_storage(value: Any, memory: MemoryMap) -> Any:
    """What a unit's pickle says of a storage."""
    if isinstance(value, torch.storage.TypedStorage):
        return typed_storage, (value._untyped_storage, value.dtype)
    if value.device.type == "meta":
        return NotImplemented
    source, place = _place(value, memory)
    return storage_on_memory, (source, place, value.nbytes())


def reduce_tensor(value: torch.Tensor, memory: MemoryMap, name_of: Callable[[Any], str]) -> Any:
    """What a unit's pickle says of a tensor; `name_of` gives the variable that a later error must name."""
    with torch._C.DisableTorchFunctionSubclass():
        return _reduce_tensor(value, memory, name_of)


def _reduce_tensor(value: torch.Tensor, memory: MemoryMap, name_of: Callable[[Any], str]) -> Any:
    if value.grad_fn is not None and not is_plain(value):
        raise PreconditionFailed("GRAPH_NOT_CARRIED", "it belongs to an autograd graph, which cannot move: detach it")
    # Also when they are empty: a handle that removes a hook knows its dict.
    extras = (_grad(value), value._backward_hooks, value._post_accumulate_grad_hooks)
    if not is_plain(value):
        return _reduce_other(value, extras)
    storage = value.untyped_storage()
    source, place = _place(storage, memory)
    geometry = (value.storage_offset(), tuple(value.size()), tuple(value.stride()))
    graph = (name_of(value), _shown_name(value.grad_fn)) if value.grad_fn is not None else None
    flags = (value.requires_grad, graph, value.is_conj(), value.is_neg(), value.is_inference())
    arguments = (source, place, storage.nbytes(), type(value), value.dtype, geometry, flags)
    grad, hooks, late_hooks = extras
    attributes = _attributes(value)
    if all(one is None for one in (grad, attributes, hooks, late_hooks)):
        return tensor, arguments
    return tensor, arguments, (grad, hooks, attributes, late_hooks), None, None, set_tensor


def _reduce_other(value: torch.Tensor, extras: tuple[Any, Any, Any]) -> Any:
    """As torch takes it apart, which leaves out gradient, hooks, and of a sparse tensor that it needs a gradient."""
    grad, hooks, late_hooks = extras
    is_sparse_leaf = value.layout is not torch.strided and value.requires_grad
    if grad is hooks is late_hooks is None and not is_sparse_leaf:
        return NotImplemented
    reduced: tuple[Any, ...] = value.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    if len(reduced) != 2:
        raise PreconditionFailed("NOT_SERIALIZABLE", "its class says how to save it, but not its gradient and hooks")
    state = (grad, hooks, None, late_hooks)
    return tensor_with_extras, (*reduced, value.requires_grad), state, None, None, set_tensor


def tensor_with_extras(make: Any, arguments: tuple[Any, ...], requires_grad: bool) -> torch.Tensor:
    """A tensor made torch's own way; gradient and hooks follow."""
    made: torch.Tensor = make(*arguments)
    return made if made.requires_grad == requires_grad else made.requires_grad_(requires_grad)


def _place(storage: Any, memory: MemoryMap) -> tuple[Any, int]:
    """(the memory that `storage` lies in, byte offset in it)."""
    block: Block | None = memory.block_of(storage)
    if block is None:
        if storage.nbytes() == 0:
            return None, 0
        block = memory.add_late(storage, is_storage=True)
    if block.known_id is None and block.device == CPU and not storage.resizable():
        # Such as one of `torch.from_numpy`.
        path = shared_file_at(storage.data_ptr())
        if path is not None:
            raise PreconditionFailed("MAPPED_FILE", f"its elements lie in the mapped file {path}: clone it")
    return (block.owner if block.kind == "bytearray" else block), storage.data_ptr() - block.address


def storage_on_memory(memory: Any, offset: int, size_bytes: int) -> Any:
    """The storage over a range of `memory`; the same object for the same range."""
    if memory is None:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return loaded_memory(memory).storage(offset, size_bytes)


def typed_storage(untyped: Any, dtype: torch.dtype) -> Any:
    """A typed face of `untyped`."""
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=untyped, dtype=dtype, _internal=True
    )


def tensor(
    memory: Any, place: int, size_bytes: int, kind: type, dtype: torch.dtype, geometry: tuple[int, Any, Any],
    flags: tuple[bool, tuple[str, str] | None, bool, bool, bool],
) -> torch.Tensor:  # fmt: skip
    """A tensor over `memory`; one that belonged to an autograd graph says so when somebody goes backward through it."""
    requires_grad, graph, conjugate, negative, inference = flags
    storage = storage_on_memory(memory, place, size_bytes)
    offset, shape, strides = geometry
    # Torch would rather give a storage more memory than refuse.
    steps = [stride * dtype.itemsize for stride in strides]
    if memory is not None:
        check_elements(offset * dtype.itemsize, shape, steps, dtype.itemsize, storage.nbytes())
    if inference:
        with torch.inference_mode():
            return _as_kind(_strided(storage, dtype, geometry), kind, False)
    made = _strided(storage, dtype, geometry)
    if size_bytes == 0 and storage.nbytes():
        # Its elements were given up by `resize_(0)`, its shape was not.
        storage.resize_(0)
    if conjugate:
        torch._C._set_conj(made, True)
    if negative:
        torch._C._set_neg(made, True)
    if graph is None:
        return _as_kind(made, kind, requires_grad)
    with torch.enable_grad():
        trace = torch.zeros((), requires_grad=True)
        name, shown = graph
        found: torch.Tensor = _left_behind(shown).apply(trace, made, name)  # type: ignore[no-untyped-call]
    return found if kind is torch.Tensor else found.as_subclass(kind)


def _strided(storage: Any, dtype: torch.dtype, geometry: tuple[int, Any, Any]) -> torch.Tensor:
    offset, size, stride = geometry
    made: torch.Tensor = _set_storage(torch.empty(0, dtype=dtype, device=storage.device), storage, offset, size, stride)
    return made


def _as_kind(made: torch.Tensor, kind: type, requires_grad: bool) -> torch.Tensor:
    if kind is torch.Tensor:
        return made.requires_grad_() if requires_grad else made
    found: torch.Tensor = torch.Tensor._make_subclass(kind, made, requires_grad)
    return found


def set_tensor(made: torch.Tensor, state: tuple[Any, Any, dict[str, Any] | None, Any]) -> None:
    """Gradient, hooks of the gradient, Python attributes, hooks that run when the gradient is there."""
    grad, hooks, attributes, late_hooks = state
    if attributes:
        # The very dict: a variable may hold it.
        made.__dict__ = attributes
    if grad is not None:
        if not made.is_leaf:
            made.retain_grad()
        made.grad = grad
    if hooks is not None:
        made._backward_hooks = hooks
    if late_hooks is not None:
        made._post_accumulate_grad_hooks = late_hooks


def _shown_name(grad_fn: Any) -> str:
    """What `print` shows of a tensor's history."""
    name = type(grad_fn).__name__
    return str(grad_fn.name()).rpartition("::")[2] if name == "CppFunction" else name


@functools.lru_cache(maxsize=SHOWN_NAMES_MAX)
def _left_behind(shown: str) -> type[_GraphLeftBehind]:
    """A stand-in for a graph that `print` shows as it showed the graph."""
    made = type(shown, (_GraphLeftBehind,), {})
    made._backward_cls.__name__ = shown  # type: ignore[attr-defined]
    return made


class _GraphLeftBehind(torch.autograd.Function):
    """Stands where the autograd graph was: the value is right, going back through it is refused."""

    @staticmethod
    def forward(context: Any, trace: torch.Tensor, value: torch.Tensor, name: str) -> torch.Tensor:
        """The value itself, over the same memory."""
        context.name = name
        made: torch.Tensor = torch.empty(0, dtype=value.dtype, device=value.device).set_(
            value.untyped_storage(), value.storage_offset(), value.size(), value.stride()
        )
        return made

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Never gives gradients."""
        raise PreconditionFailed(
            "GRAPH_NOT_CARRIED",
            f"`{context.name}` was computed in an earlier cell, and its autograd graph did not move with its value: "
            "compute it in the same cell as the backward pass",
            name=context.name,
        )  # fmt: skip
