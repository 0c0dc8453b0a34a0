"""Arrow buffers as ranges of memory: arrays, their slices, tables and frames over the same buffers share (design §3).

Arrays are taken apart by Arrow itself; only their buffers are kept apart from the pickle. `note_arrow` and
`reduce_buffer` at save, `arrow_buffer` at restore; its name is part of the format.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from looseleaf.checkpoint.by_name import is_session_class
from looseleaf.checkpoint.loaded_memory import check_range, loaded_memory
from looseleaf.checkpoint.memory import MemoryMap

# What holds buffers, for the walk.
HOLDERS: tuple[type, ...] = (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, pa.Buffer)


class ArrowMemory:
    """The memory of one buffer, for as long as an object that is known to hold it lives."""

    __slots__ = ("__weakref__", "_buffer", "end", "start")

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.start = int(buffer.address)
        self.end = self.start + int(buffer.size)


# id of a live holder -> (it, its memory); Arrow's objects take no attributes.
_held: dict[int, tuple[weakref.ref[Any], list[ArrowMemory]]] = {}


def note_arrow(value: Any, memory: MemoryMap) -> list[Any]:
    """Tells `memory` of all buffers of an Arrow object; returns the objects that it refers to."""
    for buffer in _memory_of(value):
        memory.note_range(buffer, buffer.start, buffer.end, value)
    return [type(value)] if is_session_class(type(value)) else []


def _memory_of(value: Any) -> list[ArrowMemory]:
    """The same objects at every save: a block is known by who holds it."""
    known = _held.get(id(value))
    if known is None or known[0]() is not value:
        address = id(value)
        reference = weakref.ref(value, lambda dead: _forget(address, dead))
        known = _held[address] = (reference, [ArrowMemory(buffer) for buffer in _buffers_of(value)])
    return known[1]


def _forget(address: int, dead: weakref.ref[Any]) -> None:
    known = _held.get(address)
    if known is not None and known[0] is dead:
        del _held[address]


def _buffers_of(value: Any) -> Iterator[Any]:
    """Every buffer of host memory once, also those of children and dictionaries."""
    seen: set[tuple[int, int]] = set()
    todo: list[Any] = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, pa.Buffer):
            if part.is_cpu and part.size and (part.address, part.size) not in seen:
                seen.add((part.address, part.size))
                yield part
        elif isinstance(part, pa.ChunkedArray):
            todo.extend(part.chunks)
        elif isinstance(part, (pa.RecordBatch, pa.Table)):
            todo.extend(part.columns)
        elif isinstance(part, pa.Array):
            reduced = part.__reduce__()
            todo.extend(reduced[1])
        elif isinstance(part, (list, tuple)):
            todo.extend(part)


def reduce_buffer(value: Any, memory: MemoryMap) -> Any:
    """What a unit's pickle says of a buffer; NotImplemented for one that the walk did not meet."""
    block = memory.block_around(value.address, value.address + value.size) if value.is_cpu and value.size else None
    if block is None:
        return NotImplemented
    return arrow_buffer, (block.owner if block.owner is not None else block, value.address - block.address, value.size)


def arrow_buffer(memory: Any, place: int, size_bytes: int) -> Any:
    """The buffer over `size_bytes` of `memory` from byte `place` on."""
    check_range(place, size_bytes, len(memory) if isinstance(memory, bytes) else loaded_memory(memory).size_bytes)
    if isinstance(memory, bytes):
        return pa.py_buffer(memory).slice(place, size_bytes)
    loaded = loaded_memory(memory)
    exporter = loaded.array_buffer()
    return pa.foreign_buffer(loaded.address + place, size_bytes, exporter)
