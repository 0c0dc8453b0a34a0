"""Part of StateTracker: makes variables of the tracked version live (design §3: Restore order)."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from looseleaf.checkpoint import import_filters
from looseleaf.checkpoint.ahead import AHEAD_BYTES_MAX, Ahead
from looseleaf.checkpoint.identity import has_identity
from looseleaf.checkpoint.labels import HELD_BYTES_MAX
from looseleaf.checkpoint.loaded_memory import Home, LoadedMemory
from looseleaf.checkpoint.loader import Loader
from looseleaf.checkpoint.manifest import Closure, Manifest, Unsaved
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.patches import apply_patches
from looseleaf.checkpoint.persons_code import BreakOff, shown
from looseleaf.checkpoint.reports import RestoreReport
from looseleaf.checkpoint.stub import Stub, is_stub
from looseleaf.ids import PayloadId, UnitId

if TYPE_CHECKING:
    from looseleaf.checkpoint.tracker import StateTracker

log = logging.getLogger("looseleaf.checkpoint")


def stub_for(manifest: Manifest, name: str) -> Stub | None:
    """What stands for the variable as `manifest` knows it; None if it does not."""
    unit_id = manifest.roots.get(name)
    if unit_id is not None:
        return Stub(name, unit_id, manifest.units[unit_id].header, None)
    entry = next((entry for entry in manifest.unsaved if entry.name == name), None)
    return None if entry is None else Stub(name, None, None, entry)


class Restorer:
    """One restore. Order: environment, directory and path, imports, objects, patches and flags, random generators."""

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker = tracker
        self._manifest = tracker.manifest
        self._namespace = tracker.namespace
        self.problems: list[str] = []

    def restore(self, names: list[str], imports: list[str], ahead: Ahead) -> RestoreReport:
        """See StateTracker.restore."""
        tracker, manifest = self._tracker, self._manifest
        asked = manifest.closure(names)
        extra = self._names_of_process(asked)
        closure = manifest.closure([*names, *extra]) if extra else asked
        with raw_access():
            loader = self.new_loader(ahead.units, ahead.memory)
            # All that may raise comes before all that changes something here.
            loader.fetch(self._heads_to_load(closure.names))
            tracker.labels.next_id = max(tracker.labels.next_id, manifest.next_id)
            is_first = self.begin_process_state(loader)
        # A person's code, which must see the devices as cells do.
        began_s = time.monotonic()
        with import_filters.noted():
            failed_imports, imports_s = self._import(imports)
        import_s = time.monotonic() - began_s
        with raw_access():
            wanted = [name for name in closure.names if is_stub(self._namespace.get(name))]
            with import_filters.noted():
                restored, failed = self._load(wanted, loader)
            failed = self._without_extra(failed, set(asked.names))
            self.adopt(loader)
            if is_first:
                self.end_process_state(loader)
        return RestoreReport(
            restored=tuple(restored), mapped_bytes=loader.mapped_bytes, missing=asked.missing, failed=tuple(failed),
            problems=tuple(self.problems), failed_imports=failed_imports, import_s=import_s,
            imports_s=imports_s,
        )  # fmt: skip

    def _names_of_process(self, asked: Closure) -> list[str]:
        """What patches read; nothing for no variables, and what lies on devices only if something asked for does."""
        if not (asked.names or asked.missing or asked.unsaved):
            return []
        on_device = any(self._manifest.payloads[payload_id].device != "cpu" for payload_id in asked.payloads)
        return self._manifest.names_of_process(with_devices=on_device)

    def _without_extra(self, failed: list[Unsaved], asked: set[str]) -> list[Unsaved]:
        """Those of `failed` that were asked for; what only a patch reads costs no variable."""
        for entry in failed:
            if entry.name not in asked:
                self.problems.append(f"`{entry.name}`, which a patch reads, could not be loaded: {entry.detail}")
        return [entry for entry in failed if entry.name in asked]

    def map_ahead(self, ahead: Ahead) -> None:
        """Maps what `ahead.names` will need and nobody has mapped; of what they do not need it keeps nothing."""
        heads = self._heads_to_load(self._manifest.closure(list(ahead.names)).names)
        memory = self.new_loader(ahead.units, ahead.memory).map_ahead(heads, AHEAD_BYTES_MAX)
        ahead.mapped(self._manifest, memory)

    def new_loader(
        self, fetched: Mapping[bytes, bytes] | None = None, ahead: dict[PayloadId, Any] | None = None
    ) -> Loader:
        """A loader of the tracked version that takes what lives here as it is."""
        tracker = self._tracker
        note = tracker.device_hashes.note_restored
        return Loader(self._manifest, tracker.io, self._namespace, tracker.labels.live, fetched, note, ahead)

    def _heads_to_load(self, names: Iterable[str]) -> list[UnitId]:
        live, hidden = self._namespace, self._tracker.hidden
        heads = [self._manifest.roots[n] for n in names if n not in live or is_stub(live[n]) or hidden(n)]
        process_state = self._process_state_to_set()
        return heads if process_state is None else [process_state, *heads]

    def _process_state_to_set(self) -> UnitId | None:
        unit_id = self._manifest.process_state
        is_set = unit_id is None or self._tracker.applied_process_state == self._manifest.units[unit_id].hash
        return None if is_set else unit_id

    def place_stubs(self) -> list[str]:
        """A stub for each variable of the version that the namespace lacks; returns their names."""
        known = [*self._manifest.roots, *(entry.name for entry in self._manifest.unsaved if not entry.is_place)]
        # A name that was the shell's own here may be a variable of the version: a person's `Out` or `open`.
        hidden = self._tracker.hidden
        added = [name for name in known if name not in self._namespace or hidden(name)]
        for name in added:
            self._namespace[name] = stub_for(self._manifest, name)
        return added

    def begin_process_state(self, loader: Loader) -> bool:
        """Environment, directory and path of the version, if its process state is not set here yet."""
        unit_id = self._process_state_to_set()
        if unit_id is None:
            return False
        loader.load([unit_id])
        if unit_id in loader.failed:
            self.problems.append(f"the process state could not be set: {loader.failed[unit_id].message}")
            return False
        self.problems += self._tracker.process.apply(loader.loaded[unit_id], before_objects=True)
        return True

    def end_process_state(self, loader: Loader) -> None:
        """Patches, flags and, last, the random generators."""
        unit_id = self._manifest.process_state
        assert unit_id is not None
        record: dict[str, Any] = loader.loaded[unit_id]
        self.problems += apply_patches(record.get("patches", {}))
        self.problems += self._tracker.process.apply(record, before_objects=False)
        for problem in self.problems:
            log.warning("state_not_followed %s", problem)
        self._tracker.record = record
        self._tracker.applied_process_state = self._manifest.units[unit_id].hash

    def _import(self, imports: list[str]) -> tuple[tuple[tuple[str, str], ...], dict[str, float]]:
        """Imports each module that is not there yet. (name, error) of those that failed; seconds of those that came."""
        failed = []
        took_s: dict[str, float] = {}
        lacking = [name for name in imports if sys.modules.get(name) is None]
        if lacking:
            # It may have been installed a moment ago. Hundreds of folders are looked through anew: not for nothing.
            importlib.invalidate_caches()
        for name in lacking:
            if sys.modules.get(name) is not None:
                continue  # it came with another one
            self._tracker.on_import(name)
            began_s = time.monotonic()
            try:
                importlib.import_module(name)
            except BreakOff:
                raise
            except BaseException as error:
                failed.append((name, shown(error)))
            else:
                took_s[name] = time.monotonic() - began_s
        if lacking:
            self._tracker.on_import("")
        return tuple(failed), took_s

    def _load(self, wanted: list[str], loader: Loader) -> tuple[list[str], list[Unsaved]]:
        """Loads and binds `wanted`. Code that runs while an object is made may read variables that are bound only now:
        what stumbled over their stubs is tried again, for as long as that gets on."""
        restored: list[str] = []
        while True:
            loader.load([self._manifest.roots[name] for name in wanted])
            bound, failed = self._bind(wanted, loader)
            restored += bound
            wanted = [entry.name for entry in failed if entry.reason == "NOT_RESTORED"]
            if not bound or not wanted:
                return restored, failed
            loader.forget_failures("NOT_RESTORED")

    def _bind(self, wanted: list[str], loader: Loader) -> tuple[list[str], list[Unsaved]]:
        restored, failed = [], []
        places = self._members(loader)
        for name in wanted:
            unit_id = self._manifest.roots[name]
            if unit_id in loader.failed:
                error = loader.failed[unit_id]
                failed.append(Unsaved(name, error.reason, name, error.message, self._manifest.version))
                continue
            value = loader.value_of(unit_id)
            self._namespace[name] = value
            self._tracker.saved_bindings[name] = id(value)
            if not has_identity(value) or id(value) in places:
                self._tracker.labels.atoms[name] = unit_id
            restored.append(name)
        return restored, failed

    def _members(self, loader: Loader) -> set[int]:
        """ids of objects in bundles: a variable's unit then does nothing but name its place in one."""
        units = self._manifest.units
        fresh = [value for unit_id, value in loader.loaded.items() if units[unit_id].header.kind == "bundle"]
        known = [bundle.members for _, bundle in self._tracker.labels.bundles()]
        return {id(member) for members in [*fresh, *known] for member in members}

    def adopt(self, loader: Loader) -> None:
        """Labels for everything that was loaded, so that the next save knows it again."""
        labels, manifest = self._tracker.labels, self._manifest
        atoms = set(labels.atoms.values())
        for payload_id, memory in loader.memory.items():
            if not isinstance(memory, LoadedMemory):
                labels.set_home(payload_id, Home.of_bytes(memory))
            elif labels.live(payload_id) is None:
                labels.set_home(payload_id, Home.of_loaded(memory))
        for unit_id, value in loader.loaded.items():
            if unit_id == manifest.process_state or unit_id in atoms:
                continue
            if manifest.units[unit_id].header.kind == "bundle":
                labels.set_bundle(unit_id, value)
            elif isinstance(value, LoadedMemory):
                labels.set_home(unit_id, Home.of_loaded(value))
            elif has_identity(value):
                labels.set_head(unit_id, value, hold=self._is_small(unit_id))
        labels.hold_exactly(self._tracker.needed_here())

    def _is_small(self, unit_id: UnitId) -> bool:
        units = self._manifest.units
        header = units[unit_id].header
        size = sum(header.device_bytes.values())
        size += sum(sum(units[ref].header.device_bytes.values()) for ref in header.refs)
        return size <= HELD_BYTES_MAX
