"""Rows of manifests that this process has read or written before: of one version and the next, nearly all are the same.

A manifest has a row for each unit and each payload. Checking a row costs some ten times as much as looking it up, and
every version passes through the worker, daemons, the store and the kernel. What was checked once is not checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgpack

from looseleaf.units import KIB, MIB

# Of one kind of row in one process: so many bytes in each of two generations; longer rows are not remembered.
ROWS_BYTES_MAX: Final = 16 * MIB
ROW_BYTES_MAX: Final = 16 * KIB
# What a row's entry takes beside the row: its header, texts, and its places in both tables.
ENTRY_BYTES: Final = 1536

Entry = TypeVar("Entry")


class Rows(Generic[Entry]):
    """Turns rows into (id, entry) and back, and remembers them.

    `read`: the id and the entry of a row's fields; raises if they are wrong. `write`: an entry's fields, after the id.
    Entries must not be changed. Threads may share it: what two forget or add at one moment is only read once more.
    """

    def __init__(self, read: Callable[[Any], tuple[int, Entry]], write: Callable[[Entry], list[Any]]) -> None:
        self._read = read
        self._write = write
        self._young: _Generation[Entry] = _Generation()
        self._old: _Generation[Entry] = _Generation()

    def entry_of(self, row: bytes) -> tuple[int, Entry]:
        """The id and the entry that a row says. Raises what `read` does, ValueError if it is not one msgpack value."""
        found = self._young.by_row.get(row)
        if found is None:
            found = self._old.by_row.get(row)
            found = found or self._read(msgpack.unpackb(row, raw=False, strict_map_key=True, use_list=True))
            self._remember(row, *found)
        return found

    def row_of(self, entry_id: int, entry: Entry) -> bytes:
        """The row that says them. Raises what `read` does of a row that could not be read back."""
        key = (entry_id, id(entry))
        found = self._young.by_entry.get(key)
        if found is None:
            found = self._old.by_entry.get(key)
            found = found or (self._checked_row(entry_id, entry), entry)
            self._remember(found[0], entry_id, entry)
        return found[0]

    def _checked_row(self, entry_id: int, entry: Entry) -> bytes:
        fields = [entry_id, *self._write(entry)]
        self._read(fields)
        row: bytes = msgpack.packb(fields, use_bin_type=True)
        return row

    def _remember(self, row: bytes, entry_id: int, entry: Entry) -> None:
        if len(row) > ROW_BYTES_MAX:
            return
        if not self._young.has_room(len(row)):
            self._old, self._young = self._young, _Generation()
        self._young.add(row, entry_id, entry)


class _Generation(Generic[Entry]):
    def __init__(self) -> None:
        self.by_row: dict[bytes, tuple[int, Entry]] = {}
        # Each holds its entry: the id of an object that is gone may be used again.
        self.by_entry: dict[tuple[int, int], tuple[bytes, Entry]] = {}
        self._size_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return self._size_bytes + size_bytes + ENTRY_BYTES <= ROWS_BYTES_MAX

    def add(self, row: bytes, entry_id: int, entry: Entry) -> None:
        self.by_row.setdefault(row, (entry_id, entry))
        self.by_entry[entry_id, id(entry)] = row, entry
        self._size_bytes += len(row) + ENTRY_BYTES
