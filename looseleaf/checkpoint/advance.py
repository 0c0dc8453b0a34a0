"""Part of StateTracker: the rule of two copies. What another holder changed is dropped here (design §3)."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from looseleaf.checkpoint.bundles import Bundle
from looseleaf.checkpoint.components import closed_under
from looseleaf.checkpoint.finalizers import mute
from looseleaf.checkpoint.loader import Loader
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.reports import AdvanceReport
from looseleaf.checkpoint.restorer import Restorer, stub_for
from looseleaf.checkpoint.stale import find_stale
from looseleaf.checkpoint.stub import is_stub
from looseleaf.errors import PreconditionFailed
from looseleaf.ids import PayloadId, UnitId

if TYPE_CHECKING:
    from looseleaf.checkpoint.tracker import StateTracker


class Advancer:
    """Moves a tracker from its version to a newer one."""

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker = tracker
        self._old = tracker.manifest
        self._namespace = tracker.namespace

    def advance(self, new: Manifest) -> AdvanceReport:
        """See StateTracker.advance."""
        tracker = self._tracker
        if new.session_id != tracker.session_id:
            raise PreconditionFailed("OTHER_SESSION", f"the manifest belongs to session {new.session_id}")
        fetched = self._fetch_process_state(new)
        with raw_access():
            gone = self._units_to_drop(new)
            # Nobody else has lazy bytes: they must outlive the variables that are dropped here.
            tracker.labels.hold_memory(i for i in self._payloads_of(gone) if self._old.payloads[i].is_lazy)
            dropped_objects = self._live_of(gone)
            local = self._local_names(new)
            self._mute(gone, dropped_objects)
            tracker.manifest = new
            dropped, deleted = self._drop_names(new, gone, local)
            self._renew_stubs(new)
            tracker.labels.next_id = max(tracker.labels.next_id, new.next_id)
            stale = self._stale(local, dropped_objects)
            # IPython's tables of results are set anew by whoever follows.
            tracker.note_stale(found for found in stale if found[0] in local)
            for some_id in gone | self._payloads_to_drop(new):
                tracker.labels.forget(some_id)
            tracker.labels.forget_dropped(self._payloads_of(gone))
            restorer = Restorer(tracker)
            added = restorer.place_stubs()
            self._bind_plain(new, {*added, *dropped})
            loader = restorer.new_loader(fetched)
            if self._follows_process_state():
                if restorer.begin_process_state(loader):
                    restorer.end_process_state(loader)
            restorer.adopt(loader)
        return AdvanceReport(tuple(dropped), tuple(added), tuple(deleted), tuple(stale), tuple(restorer.problems))

    def _follows_process_state(self) -> bool:
        return self._tracker.applied_process_state is not None or self._old.version > 0

    def _fetch_process_state(self, new: Manifest) -> Mapping[bytes, bytes]:
        # Before anything changes here: if the store cannot be asked now, this holder stays at its version. Otherwise
        # its next save would take the process as it is for what the other holder left.
        unit_id, applied = new.process_state, self._tracker.applied_process_state
        if unit_id is None or not self._follows_process_state() or applied == new.units[unit_id].hash:
            return {}
        return Loader(new, self._tracker.io, self._namespace, lambda _: None).fetch([unit_id])

    def _units_to_drop(self, new: Manifest) -> set[int]:
        """Units of the old version that reach a changed unit or payload, or share an unlabelled object with one."""
        old = self._old
        payloads = self._payloads_to_drop(new)
        changed = {
            unit_id: unit_id
            for unit_id, entry in old.units.items()
            if unit_id != old.process_state
            and (
                unit_id not in new.units
                or new.units[unit_id].hash != entry.hash
                or not payloads.isdisjoint(entry.header.payloads)
            )
        }
        gone = set(closed_under(changed, old.units, lambda unit_id: old.units[unit_id].header.refs))
        while True:
            unlabelled = old.reachable_units(gone) & self._tracker.labels.lost.keys()
            more = set(closed_under({u: u for u in unlabelled}, old.units, lambda u: old.units[u].header.refs)) - gone
            if not more:
                return {int(unit_id) for unit_id in gone}
            gone |= more

    def _payloads_to_drop(self, new: Manifest) -> set[int]:
        return {
            int(payload_id)
            for payload_id, entry in self._old.payloads.items()
            if new.payloads.get(payload_id) != entry
        }

    def _payloads_of(self, gone: set[int]) -> set[PayloadId]:
        return {payload_id for unit_id in gone for payload_id in self._old.units[UnitId(unit_id)].header.payloads}

    def _live_of(self, gone: set[int]) -> dict[int, Any]:
        found = {}
        for unit_id in gone:
            value = self._tracker.labels.live(unit_id)
            for one in value.members if isinstance(value, Bundle) else [value]:
                if one is not None:
                    found[id(one)] = one
        return found

    def _mute(self, gone: set[int], dropped: Mapping[int, Any]) -> None:
        if dropped:
            kept = self._live_of(self._tracker.labels.live_ids() - gone)
            mute(self._namespace, dropped.values(), kept.values())

    def _local_names(self, new: Manifest) -> set[str]:
        """Variables whose value the store does not know: unsaved here, or bound since the last save."""
        tracker = self._tracker
        later = {entry.name: entry.since_version for entry in new.unsaved}
        local = set()
        for name, value in tracker.variables():
            if is_stub(value):
                continue
            mine = tracker.unsaved_here.get(name)
            if mine is not None:
                if name not in new.roots and later.get(name) == mine.since_version:
                    local.add(name)
            elif name not in self._old.roots:
                if name not in new.roots:
                    local.add(name)
            elif tracker.saved_bindings.get(name) not in (None, id(value)) and self._same_root(new, name):
                local.add(name)
        return local

    def _same_root(self, new: Manifest, name: str) -> bool:
        before, after = self._old.roots.get(name), new.roots.get(name)
        return before == after and before is not None and self._old.units[before].hash == new.units[before].hash

    def _drop_names(self, new: Manifest, gone: set[int], local: set[str]) -> tuple[list[str], list[str]]:
        """Puts stubs where the live value is not what the new version says; deletes what it does not know."""
        dropped: list[str] = []
        deleted: list[str] = []
        for name, value in self._tracker.variables():
            if is_stub(value) or name in local:
                continue
            before, after = self._old.roots.get(name), new.roots.get(name)
            if after is not None and before == after and before not in gone:
                continue
            self._tracker.labels.atoms.pop(name, None)
            self._tracker.saved_bindings.pop(name, None)
            (dropped if self._put_stub(new, name) else deleted).append(name)
        return dropped, deleted

    def _renew_stubs(self, new: Manifest) -> None:
        """Stubs carry the header of the version that they stand for."""
        for name, value in self._tracker.variables():
            if is_stub(value):
                self._put_stub(new, name)

    def _put_stub(self, new: Manifest, name: str) -> bool:
        """A stub in the place of the variable, or none of it if the new version does not know it."""
        stub = stub_for(new, name)
        if stub is None:
            del self._namespace[name]
            return False
        self._namespace[name] = stub
        return True

    def _bind_plain(self, new: Manifest, names: set[str]) -> None:
        """Small plain values are in their headers, imported modules at hand: neither needs a stub."""
        for name in names:
            unit_id = new.roots.get(name)
            if unit_id is None:
                continue
            header = new.units[unit_id].header
            if header.has_flag and header.type_name in ("bool", "int", "float", "str", "NoneType"):
                self._bind(name, unit_id, header.flag)
            elif header.kind == "module" and header.preview.startswith("module "):
                module = sys.modules.get(header.preview.removeprefix("module "))
                if isinstance(module, types.ModuleType):
                    self._bind(name, unit_id, module)

    def _bind(self, name: str, unit_id: UnitId, value: Any) -> None:
        self._namespace[name] = value
        self._tracker.labels.atoms[name] = unit_id
        self._tracker.saved_bindings[name] = id(value)

    def _stale(self, local: set[str], dropped: dict[int, Any]) -> list[tuple[str, str]]:
        """Values outside the store that still reach an object which was dropped, each with the path to it."""
        kept = [(name, value) for name, value in list(self._namespace.items()) if self._is_kept(name, value, local)]
        labels = self._tracker.labels
        stored = [labels.live(some_id) for some_id in labels.live_ids()] if dropped and kept else []
        return find_stale(self._namespace, kept, dropped, stored)

    def _is_kept(self, name: str, value: Any, local: set[str]) -> bool:
        if name in local:
            return True
        is_result = name == "Out" or (name.startswith("_") and name.strip("_0123456789") == "")
        return is_result and self._tracker.hidden(name)
