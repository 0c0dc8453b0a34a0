"""Stored units as live objects again: any subset, with everything that they share shared (design §3).

Units load after what they refer to. On a cycle of references the objects of all its units exist before any is filled.
No byte is unpickled before its hash was found to be the manifest's.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from looseleaf.checkpoint import unit_format
from looseleaf.checkpoint.bundles import Bundle, parse_name
from looseleaf.checkpoint.components import components
from looseleaf.checkpoint.loaded_memory import LoadedMemory
from looseleaf.checkpoint.manifest import ALGORITHM_XXH3, Manifest, PayloadEntry, UnitEntry, region_ids
from looseleaf.checkpoint.memory import CPU
from looseleaf.checkpoint.persons_code import BreakOff, import_error, restore_error
from looseleaf.checkpoint.rebuild import module_attribute
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.dirty_tracker import MappedRegions, hash128, note_restored
from looseleaf.errors import Corrupt, LooseLeafError, NotFound, PreconditionFailed
from looseleaf.ids import PayloadId, UnitId
from looseleaf.units import REGION_BYTES


class _UnitReader(pickle.Unpickler):
    """One unit's pickles; `lookup` answers for what they name outside the unit."""

    def __init__(self, data: bytes | memoryview, lookup: Callable[[Any], Any]) -> None:
        self.mode = bytes(data[:1])
        super().__init__(io.BytesIO(data[1:]))
        self._lookup = lookup

    def find_class(self, module: str, name: str) -> Any:
        """A class or function by name, imported if need be."""
        try:
            return super().find_class(module, name)
        except BreakOff:
            raise
        except BaseException as error:
            raise import_error(error, module, name) from error

    def persistent_load(self, name: Any) -> Any:
        """The object behind a persistent id."""
        return self._lookup(name)


class Loader:
    """Loads units of one version. `failed`: why a unit could not be loaded, of it and of those that need it.

    `fetched`: units by hash that need not be asked for; `ahead`: memory of payloads that need not be mapped, out of
    which this takes what it uses. `on_device`: told of each payload, ids of its regions and storage on a device that
    was just filled with it.
    """

    def __init__(
        self, manifest: Manifest, io_: StateIO, namespace: dict[str, Any], live: Callable[[int], Any],
        fetched: Mapping[bytes, bytes] | None = None,
        on_device: Callable[[PayloadId, bytes, Any], None] = lambda _payload_id, _ids, _storage: None,
        ahead: dict[PayloadId, Any] | None = None,
    ) -> None:  # fmt: skip
        self._manifest = manifest
        self._io = io_
        self._namespace = namespace
        self._live = live
        self._on_device = on_device
        self._alive: dict[int, Any] = {}
        self.loaded: dict[UnitId, Any] = {}
        self.failed: dict[UnitId, LooseLeafError] = {}
        self.memory: dict[PayloadId, Any] = {}
        # Mapped together before the units that refer to them are made.
        self._mapped: dict[PayloadId, Any] = {}
        self._ahead = {} if ahead is None else ahead
        self.mapped_bytes = 0
        self._data: dict[bytes, bytes] = dict(fetched or {})
        self._lost: dict[bytes, LooseLeafError] = {}
        self._readers: dict[UnitId, _UnitReader] = {}
        self._in_work: set[UnitId] = set()
        self._to_fill: list[tuple[int, bytes, Any, Callable[[], Any]]] = []

    def load(self, heads: Iterable[UnitId]) -> None:
        """Makes `loaded[id]` of all of `heads` that can be had, and of everything they need that does not live here."""
        groups = components(list(heads), self._refs_to_load)
        self._fetch(groups)
        self._map([payload_id for payload_id in self._to_map(groups) if payload_id not in self._ahead])
        for group in groups:
            missing = [unit_id for unit_id in group if not self._is_here(unit_id)]
            if missing:
                self._load_group(missing)
        self._mapped = {}

    def fetch(self, heads: Iterable[UnitId]) -> Mapping[bytes, bytes]:
        """The small units, by hash, of all that `load` would make; makes nothing."""
        self._fetch(components(list(heads), self._refs_to_load))
        return self._data

    def map_ahead(self, heads: Iterable[UnitId], bytes_max: int) -> Mapping[PayloadId, Any]:
        """The memory of payloads that `load` would map and that can be had, up to `bytes_max`, mapped."""
        wanted, room = [], bytes_max
        for payload_id in self._to_map(components(list(heads), self._refs_to_load)):
            room -= self._manifest.payloads[payload_id].size_bytes
            if room < 0:
                break
            wanted.append(payload_id)
        self._map([payload_id for payload_id in wanted if payload_id not in self._ahead])
        found = {**self._ahead, **self._mapped}
        return {payload_id: found[payload_id] for payload_id in wanted if payload_id in found}

    def _fetch(self, groups: list[list[UnitId]]) -> None:
        wanted = [self._entry(unit_id) for group in groups for unit_id in group if not self._is_here(unit_id)]
        inline = {entry.hash for entry in wanted if not entry.regions} - self._data.keys() - self._lost.keys()
        todo = [sorted(inline)] if inline else []
        while todo:
            hashes = todo.pop()
            try:
                self._data.update(self._io.fetch_units(hashes))
            except (NotFound, Corrupt) as error:
                # One that is lost must not cost the others: halves, down to that one.
                middle = len(hashes) // 2
                if not middle:
                    self._lost[hashes[0]] = error
                else:
                    todo += [hashes[:middle], hashes[middle:]]

    def _map(self, wanted: list[PayloadId]) -> None:
        """One request for all payloads instead of one for each."""
        if not wanted:
            return
        try:
            mapped = self._io.map_many([self._manifest.payloads[payload_id].regions for payload_id in wanted])
        except (LooseLeafError, OSError, MemoryError):
            # Each is asked for alone then, so that the others' variables are not lost with one.
            return
        self._mapped = dict(zip(wanted, mapped, strict=True))

    def _to_map(self, groups: list[list[UnitId]]) -> list[PayloadId]:
        units = [self._entry(unit_id) for group in groups for unit_id in group if not self._is_here(unit_id)]
        named = dict.fromkeys(payload_id for entry in units for payload_id in entry.header.payloads)
        payloads = self._manifest.payloads
        return [
            payload_id for payload_id in named
            if payload_id in payloads and payloads[payload_id].regions
            and payload_id not in self.memory and self._living(payload_id) is None
        ]  # fmt: skip

    def _refs_to_load(self, unit_id: UnitId) -> Iterable[UnitId]:
        return () if self._is_here(unit_id) else self._entry(unit_id).header.refs

    def value_of(self, unit_id: UnitId) -> Any:
        """The object of a unit that was loaded or lives here."""
        return self.loaded[unit_id] if unit_id in self.loaded else self._living(unit_id)

    def _living(self, some_id: int) -> Any:
        """What lives here already; kept from now on, so that it does not die before it is used."""
        found = self._alive.get(some_id)
        if found is None:
            found = self._live(some_id)
            if found is not None:
                self._alive[some_id] = found
        return found

    def _is_here(self, unit_id: UnitId) -> bool:
        return unit_id in self.loaded or self._living(unit_id) is not None

    def _entry(self, unit_id: UnitId) -> UnitEntry:
        return self._manifest.units[unit_id]

    def _load_group(self, group: list[UnitId]) -> None:
        """A component: usually one unit, else a cycle."""
        needed = {ref for unit_id in group for ref in self._entry(unit_id).header.refs}
        broken = next((ref for ref in sorted(needed) if ref in self.failed), None)
        try:
            if broken is not None:
                raise self.failed[broken]
            self._to_fill = []
            for unit_id in sorted(group, key=self._made_last):
                self._make(unit_id)
            # Sets and dicts last: the hash of a key may depend on its contents.
            for made in sorted(self._to_fill, key=lambda made: made[0]):
                unit_format.fill(*made[1:])
        except BreakOff:
            raise
        except BaseException as error:
            self._fail(group, error)
        finally:
            for unit_id in group:
                self._readers.pop(unit_id, None)
                self._in_work.discard(unit_id)

    def _fail(self, group: list[UnitId], error: BaseException) -> None:
        failure = restore_error(error, self._entry(group[0]).header.type_name)
        for unit_id in group:
            self.loaded.pop(unit_id, None)
            self.failed[unit_id] = failure

    def forget_failures(self, reason: str) -> None:
        """The next `load` tries units again that failed for `reason`."""
        self.failed = {unit_id: error for unit_id, error in self.failed.items() if error.reason != reason}

    def _made_last(self, unit_id: UnitId) -> bool:
        return self._reader(unit_id).mode == unit_format.MODE_VALUE

    def _reader(self, unit_id: UnitId) -> _UnitReader:
        reader = self._readers.get(unit_id)
        if reader is None:
            reader = self._readers[unit_id] = _UnitReader(self._bytes_of(self._entry(unit_id)), self._lookup)
        return reader

    def _bytes_of(self, entry: UnitEntry) -> bytes | memoryview:
        data: bytes | memoryview
        if entry.regions:
            data = memoryview(self._io.map_regions(entry.regions)).cast("B")
            self.mapped_bytes += entry.size_bytes
        elif entry.hash in self._lost:
            raise self._lost[entry.hash]
        elif entry.hash in self._data:
            data = self._data[entry.hash]
        else:
            raise Corrupt("UNIT_MISSING", "a saved object that others refer to is not listed as theirs")
        # Unpickling runs whatever the bytes say: only what was saved may come so far.
        if len(data) != entry.size_bytes or not data or hash128(data) != entry.hash:
            raise Corrupt("UNIT_DAMAGED", f"a saved object is damaged: its {len(data)} bytes are not what was saved")
        return data

    def _make(self, unit_id: UnitId) -> None:
        """Makes the unit's object; notes how to fill it if that is a second step."""
        if unit_id in self.loaded:
            return
        if unit_id in self._in_work:
            raise Corrupt("CYCLIC_CONSTRUCTION", "saved objects each need the other to exist first")
        self._in_work.add(unit_id)
        reader = self._reader(unit_id)
        if reader.mode == unit_format.MODE_VALUE:
            self.loaded[unit_id] = reader.load()
            return
        made = self.loaded[unit_id] = unit_format.make_empty(reader.mode, reader.load)
        rank = 1 if reader.mode in (unit_format.MODE_DICT, unit_format.MODE_SET) else 0
        self._to_fill.append((rank, reader.mode, made, reader.load))

    def _lookup(self, name: Any) -> Any:
        if type(name) is str:
            place = parse_name(name)
            return _place_in_module(name) if place is None else self._member(*place)
        if type(name) is not int:
            raise Corrupt("UNIT_DAMAGED", f"a saved object names another by a {type(name).__name__}")
        if name == 0:
            return self._namespace
        if name in self._manifest.payloads:
            return self._memory_of(PayloadId(name))
        return self._object_of(UnitId(name))

    def _member(self, unit_id: UnitId, index: int) -> Any:
        bundle = self._object_of(unit_id)
        members = bundle.members if type(bundle) is Bundle else bundle
        if type(members) is not list or index >= len(members):
            raise Corrupt("UNIT_DAMAGED", f"a saved object names place {index} of what has no such place")
        return members[index]

    def _object_of(self, unit_id: UnitId) -> Any:
        if unit_id in self.loaded:
            return self.loaded[unit_id]
        found = self._living(unit_id)
        if found is not None:
            return found
        if unit_id in self.failed:
            raise self.failed[unit_id]
        if unit_id not in self._manifest.units:
            raise Corrupt("UNIT_DAMAGED", f"a saved object names unit {unit_id}, which this version does not have")
        self._make(unit_id)
        return self.loaded[unit_id]

    def _memory_of(self, payload_id: PayloadId) -> Any:
        found = self.memory.get(payload_id)
        if found is None:
            found = self._living(payload_id)
        if found is None:
            found = self.memory[payload_id] = self._made_of(payload_id, self._manifest.payloads[payload_id])
        return found

    def _made_of(self, payload_id: PayloadId, entry: PayloadEntry) -> Any:
        if entry.is_lazy:
            text = f"its bytes were not committed with version {entry.lazy_at}: the session's kernel alone has them"
            raise PreconditionFailed("NOT_COMMITTED", text, version=int(entry.lazy_at))
        mapped = self._mapped.pop(payload_id, None)
        if mapped is None:
            mapped = self._ahead.pop(payload_id, None)
        if mapped is None:
            mapped = self._io.map_regions(entry.regions) if entry.size_bytes else bytearray()
        self.mapped_bytes += entry.size_bytes
        size_bytes = mapped.size_bytes if isinstance(mapped, MappedRegions) else memoryview(mapped).nbytes
        if size_bytes != entry.size_bytes:
            raise Corrupt("PAYLOAD_DAMAGED", f"a saved block has {size_bytes} bytes, not {entry.size_bytes}")
        if entry.kind == "bytes":
            return bytes(mapped)
        if entry.kind == "bytearray":
            return bytearray(mapped)
        has_ids_of_saves = (entry.algorithm, entry.region_bytes) == (ALGORITHM_XXH3, REGION_BYTES)
        if isinstance(mapped, MappedRegions) and has_ids_of_saves:
            # The next save reads only what is written from now on; of a virtual device too, whose memory this is.
            note_restored(mapped, region_ids(entry.regions))
        made = LoadedMemory.of_mapping(mapped, entry.size_bytes, entry.device, payload_id)
        if entry.device != CPU and entry.regions and has_ids_of_saves:
            made.on_device = functools.partial(self._on_device, payload_id, region_ids(entry.regions))
        return made


def _place_in_module(name: str) -> Any:
    kind, _, place = name.partition(":")
    module, _, attribute = place.partition(":")
    if kind not in ("dict", "attr") or (kind == "attr") != bool(attribute):
        raise Corrupt("UNIT_DAMAGED", f"a saved object names {name!r}")
    return module_attribute(module, attribute or "__dict__")
