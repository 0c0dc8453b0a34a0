"""Arrays as (memory, dtype, offset, shape, strides, flags): views share, and keep their base (design §3).

`reduce_array` at save, the other public functions at restore; the latter's names are part of the format.
"""

from __future__ import annotations

import array
import io
import math
import mmap
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from looseleaf.checkpoint.code_reducers import plain_state
from looseleaf.checkpoint.loaded_memory import check_elements, loaded_memory
from looseleaf.checkpoint.memory import Block, MemoryMap, array_bounds, outermost
from looseleaf.checkpoint.rebuild import module_attribute, set_plain_state
from looseleaf.errors import Corrupt, PreconditionFailed
from looseleaf.units import INLINE_PAYLOAD_BYTES_MAX

# Kinds of objects in whose memory an array may lie that are objects of their own to a person.
_OWNERS: Final = (array.array, mmap.mmap, type(io.BytesIO().getbuffer().obj))
_TEXTS: Final = getattr(np.dtypes, "StringDType", ())


def note_array(value: np.ndarray[Any, Any], memory: MemoryMap) -> list[Any]:
    """Tells `memory` where the array's elements lie; returns the objects that the array refers to."""
    children = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, np.memmap):
        return [value.base] if isinstance(value.base, np.memmap) else []
    base = outermost(value, np.ndarray)
    if base is not value:
        return [*children, base]
    owner = _buffer_owner(value)
    if isinstance(owner, _OWNERS):
        # The array lies in an object of another kind, which somebody may change: both move, or neither.
        return [*children, owner]
    if value.dtype.hasobject:
        return [*children, *value.ravel(order="K").tolist()]
    memory.note_array(value, value)
    owner = value.base
    if isinstance(owner, memoryview) and isinstance(owner.obj, bytearray):
        children.append(owner.obj)
    return children


def _buffer_owner(base: np.ndarray[Any, Any]) -> Any:
    """The object in whose memory an array lies that is no view of another array; None if it is its own."""
    owner = base.base
    return owner.obj if isinstance(owner, memoryview) else owner


def note_record(value: Any) -> list[Any] | None:
    """The array of which a record is a view; None for a record of its own."""
    return None if value.base is None else [value.base]


def reduce_record(value: Any) -> Any:
    """A view of an element of an array of records: what is written to it shows in the array."""
    if value.base is None:
        return NotImplemented
    return record, (_element(value),)


def _element(value: Any) -> np.ndarray[Any, Any]:
    base = value.base
    offset = _address(value) - _address(base)
    found: np.ndarray[Any, Any] = np.ndarray((), value.dtype, _contiguous_alias(base), offset)
    return found


def record(element: np.ndarray[Any, Any]) -> Any:
    """The record that an array without dimensions holds, over the same memory."""
    return element[()]


def reduce_array(value: np.ndarray[Any, Any], memory: MemoryMap) -> Any:
    """What a unit's pickle says of an array; NotImplemented: the array's own way."""
    kind = type(value)
    if value is np.ma.masked:
        return module_attribute, ("numpy.ma", "masked")
    if issubclass(kind, np.memmap):
        return _reduce_memmap(value)
    if kind is not np.ndarray:
        return _reduce_subclass(value)
    base = outermost(value, np.ndarray)
    if value.dtype.hasobject:
        if base is not value and isinstance(value.dtype, _TEXTS):
            raise PreconditionFailed("POINTERS", "a view of an array of texts refers to them by address: copy it")
        return _reduce_objects(value, base)
    if base.dtype.hasobject:
        raise PreconditionFailed("POINTERS", "an array of raw pointers to objects cannot move")
    if base is not value and type(base) is np.ndarray and _contiguous_alias(base) is not None:
        offset = _address(value) - _address(base)
        return array_view, (base, value.dtype, offset, value.shape, value.strides, value.flags.writeable)
    if base is not value and isinstance(base, np.memmap):
        place = _address(value) - _address(base)
        return array_in_file, (base, value.dtype, place, value.shape, value.strides, value.flags.writeable)
    owner = _buffer_owner(base)
    if isinstance(owner, array.array):
        place = _address(value) - owner.buffer_info()[0]
        return array_in_array, (owner, value.dtype, place, value.shape, value.strides, value.flags.writeable)
    if isinstance(owner, _OWNERS):
        raise PreconditionFailed("FOREIGN_MEMORY", f"it lies in the memory of {type(owner).__name__}: copy it")
    return _reduce_base(value, base, memory)


def _reduce_base(value: np.ndarray[Any, Any], base: np.ndarray[Any, Any], memory: MemoryMap) -> Any:
    low, high = array_bounds(value)
    if low == high:
        return empty_array, (value.dtype, value.shape)
    block = memory.block_of(base)
    if block is None and array_bounds(base)[1] - array_bounds(base)[0] >= INLINE_PAYLOAD_BYTES_MAX:
        block = memory.add_late(base, is_storage=False)
    if value is base and (block is None or _is_sole_owner(block, base)) and not _is_big(block):
        if value.flags.c_contiguous or value.flags.f_contiguous:
            order = "C" if value.flags.c_contiguous else "F"
            data = value.tobytes("A")
            return owned_array, (data, value.dtype, value.shape, order, value.flags.writeable)
    if block is None:
        block = memory.add_late(base, is_storage=False)
    source = block.owner if block.kind == "bytearray" else block
    place = _address(value) - block.address
    return array_on_memory, (source, value.dtype, place, value.shape, value.strides, value.flags.writeable)


def _is_big(block: Block | None) -> bool:
    return block is not None and block.is_payload


def _is_sole_owner(block: Block, base: np.ndarray[Any, Any]) -> bool:
    return len(block.owners) == 1 and block.owners[0] is base and block.payload_id is None


def _reduce_subclass(value: np.ndarray[Any, Any]) -> Any:
    kind = type(value)
    ways = ("__reduce__", "__reduce_ex__", "__setstate__")
    has_own_way = any(getattr(kind, way) is not getattr(np.ndarray, way) for way in ways)
    if has_own_way and not kind.__module__.startswith("numpy"):
        return NotImplemented
    plain = value.view(np.ndarray)
    return array_subclass, (plain, kind, value.dtype), plain_state(value), None, None, set_plain_state


def _reduce_objects(value: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> Any:
    if base is not value:
        return _reduce_object_view(value, base) if _lines_up(value, base) else NotImplemented
    if value.dtype != object or not (value.flags.c_contiguous or value.flags.f_contiguous):
        return NotImplemented
    order = "C" if value.flags.c_contiguous else "F"
    state = (value.ravel(order="K").tolist(), value.flags.writeable)
    return empty_objects, (value.shape, order), state, None, None, set_objects


def _reduce_object_view(value: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> Any:
    offset = (_address(value) - _address(base)) // value.itemsize
    return object_view, (base, offset, value.shape, value.strides, value.flags.writeable)


def _lines_up(value: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> bool:
    return type(base) is np.ndarray and base.dtype == value.dtype and _contiguous_alias(base) is not None


def _reduce_memmap(value: Any) -> Any:
    filename, mode = getattr(value, "filename", None), getattr(value, "mode", None)
    if filename is None or mode == "c":
        raise PreconditionFailed(
            "MAPPED_FILE", "a mapped file with private changes cannot move: copy it with np.array(...)"
        )
    if isinstance(value.base, np.memmap):
        root = value.base
        while isinstance(root.base, np.memmap):
            root = root.base
        return memmap_view, (root, value.dtype, _address(value) - _address(root), value.shape, value.strides)
    if not Path(filename).exists():
        raise PreconditionFailed("MAPPED_FILE", f"the file that it maps, {filename}, is gone: copy it")
    order = "C" if value.flags.c_contiguous else "F"
    return memory_mapped_file, (str(filename), value.dtype, mode, value.offset, value.shape, order)


def _address(value: np.ndarray[Any, Any]) -> int:
    return int(value.__array_interface__["data"][0])


def _contiguous_alias(base: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """A C-contiguous array over the elements of `base`, whose views numpy counts as views of `base`; or None."""
    if base.flags.c_contiguous:
        return base
    if base.size == 0 or any(stride < 0 for stride in base.strides):
        return None
    turned = base.transpose(sorted(range(base.ndim), key=lambda axis: (-base.strides[axis], axis)))
    return turned if turned.flags.c_contiguous else None


def empty_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array without elements."""
    return np.empty(shape, dtype)


def owned_array(
    data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, writeable: bool
) -> np.ndarray[Any, Any]:
    """A small array that owns its memory."""
    made = np.empty(shape, dtype, order)
    flat = made.reshape(-1, order="A" if order == "C" else "F")
    flat[...] = np.frombuffer(data, dtype)
    if not writeable:
        made.flags.writeable = False
    return made


def array_on_memory(
    memory: Any, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> np.ndarray[Any, Any]:
    """An array whose elements lie in `memory` from byte `offset` on."""
    loaded = loaded_memory(memory)
    _check_plain(dtype)
    check_elements(offset, shape, strides, dtype.itemsize, loaded.size_bytes)
    buffer = loaded.array_buffer()
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer, offset, strides)
    made.flags.writeable = writeable
    return made


def _check_plain(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise Corrupt("PAYLOAD_DAMAGED", "saved memory would be taken for pointers to objects")


def array_view(
    base: np.ndarray[Any, Any], dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
    writeable: bool,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """A view of `base`, `offset` bytes from its first element."""
    alias = _contiguous_alias(base)
    assert alias is not None
    _check_plain(dtype)
    check_elements(offset, shape, strides, dtype.itemsize, base.nbytes)
    made: np.ndarray[Any, Any]
    if writeable and not base.flags.writeable:
        # The view was taken before its base was made read-only.
        base.flags.writeable = True
        made = np.ndarray(shape, dtype, _contiguous_alias(base), offset, strides)
        base.flags.writeable = False
        return made
    made = np.ndarray(shape, dtype, alias, offset, strides)
    if not writeable:
        made.flags.writeable = False
    return made


def empty_objects(shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    """An array of objects; `set_objects` follows."""
    return np.empty(shape, object, order)


def set_objects(made: np.ndarray[Any, Any], state: tuple[list[Any], bool]) -> None:
    """The elements, where they are to stay: numpy's own way moves them, and views made before would lose them."""
    items, writeable = state
    flat = made.reshape(-1, order="C" if made.flags.c_contiguous else "F")
    flat[...] = np.fromiter(items, object, len(items))
    made.flags.writeable = writeable


def object_view(
    base: np.ndarray[Any, Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> np.ndarray[Any, Any]:
    """A view of an array of objects, `offset` elements from its first one in memory."""
    alias = _contiguous_alias(base)
    assert alias is not None
    check_elements(offset * base.itemsize, shape, strides, base.itemsize, base.nbytes)
    flat = alias.reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=writeable)


def array_subclass(plain: np.ndarray[Any, Any], kind: type, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """`plain` seen as an array of a subclass; its attributes follow as state."""
    made: np.ndarray[Any, Any] = plain.view(kind)
    if made.dtype != dtype or type(made.dtype) is not type(dtype):
        made.dtype = dtype  # type: ignore[misc]
    return made


def array_in_file(
    root: Any, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> np.ndarray[Any, Any]:
    """A plain array over a mapped file, such as `np.asarray` gives."""
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, root, offset, strides)
    if not writeable:
        made.flags.writeable = False
    return made


def array_in_array(
    owner: Any, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool
) -> np.ndarray[Any, Any]:
    """An array over the memory of an `array.array`."""
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, owner, offset, strides)
    made.flags.writeable = writeable
    return made


def memory_mapped_file(
    filename: str, dtype: np.dtype[Any], mode: Any, offset: int, shape: tuple[int, ...], order: Any
) -> np.ndarray[Any, Any]:
    """The same file mapped again; never created, never truncated."""
    if not Path(filename).exists():
        raise PreconditionFailed("MAPPED_FILE_GONE", f"the array maps {filename}, which is not on this host")
    # Numpy would make the file longer.
    if Path(filename).stat().st_size < offset + math.prod(shape) * dtype.itemsize:
        raise PreconditionFailed("MAPPED_FILE_GONE", f"the array maps {filename}, which has become shorter since")
    return np.memmap(filename, dtype, "r+" if mode == "w+" else mode, offset, shape, order)


def memmap_view(
    root: Any, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """A view of a mapped file."""
    made: Any = np.ndarray.__new__(np.memmap, shape, dtype, root, offset, strides)
    for name in ("_mmap", "filename", "offset", "mode"):
        setattr(made, name, getattr(root, name))
    found: np.ndarray[Any, Any] = made
    return found


assert sys.byteorder == "little"
