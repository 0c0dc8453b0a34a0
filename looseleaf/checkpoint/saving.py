"""Part of StateTracker: one save, from the live variables to the tables of the committed version (design §3: Save)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from looseleaf.checkpoint.bundles import Bundle
from looseleaf.checkpoint.capture import Captured, capture
from looseleaf.checkpoint.components import closed_under
from looseleaf.checkpoint.labels import HELD_BYTES_MAX
from looseleaf.checkpoint.lazy import not_committed
from looseleaf.checkpoint.manifest import NAMES_MAX, Manifest, Unsaved
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.previews import is_encodable
from looseleaf.checkpoint.process_state import Record
from looseleaf.checkpoint.reports import SaveReport
from looseleaf.checkpoint.saver import VersionBuilder, commit, same_state, with_retry
from looseleaf.checkpoint.stub import Stub, is_stub, name_of, unit_id_of, unsaved_of
from looseleaf.checkpoint.warning_filters import without_session_categories
from looseleaf.dirty_tracker import hash128
from looseleaf.ids import CellId, ExecutionId, UnitId, Version

if TYPE_CHECKING:
    from looseleaf.checkpoint.tracker import StateTracker

_NAME_CHARS_MAX: Final = 1000
_NAME_SHOWN_CHARS: Final = 40
# Variables beyond NAMES_MAX that a report names one by one.
_NAMED_BEYOND_MAX: Final = 1000
# Deleted variables that a manifest still lists.
TOMBSTONES_MAX: Final = 4096
PROCESS_STATE_NAME: Final = "(process state)"


class Saving:
    """One save; see StateTracker.save. Must run inside `memory.raw_access()`."""

    def __init__(
        self, tracker: StateTracker, execution_id: ExecutionId, label: str, source: str, cell_id: CellId | None,
        needed: Collection[str] | None,
    ) -> None:  # fmt: skip
        self._tracker = tracker
        self._base = tracker.manifest
        self._labels = tracker.labels
        self._execution_id = execution_id
        self._label = label
        self._source = source
        self._cell_id = cell_id
        self._needed = needed
        self._record: Record = {}
        self._process_unit = UnitId(0)

    def run(self) -> SaveReport:
        """Captures, builds, moves, commits; then the tracker's tables are the new version's."""
        started_s = time.monotonic()
        tracker = self._tracker
        live, stored, unsaved = self._sort_variables()
        captured, problems = self._capture(live)
        if self._bring_here(captured, stored):
            live, stored, unsaved = self._sort_variables()
            captured, problems = self._capture(live)
        for entry in problems:
            unsaved[entry.name] = entry
        self._add_failures(captured, stored, unsaved)
        self._add_lost(captured, stored, unsaved)
        roots = {
            name: captured.roots[name] if name in captured.roots else stored[name]
            for name, _ in tracker.variables()
            if name not in unsaved and (name in captured.roots or name in stored)
        }

        def build(copy_dirty: bool) -> tuple[VersionBuilder, Manifest]:
            builder = self._build(captured, roots, copy_dirty=copy_dirty)
            return builder, self._manifest_of(builder, roots, unsaved)

        builder, manifest = with_retry(build, tracker.io)
        moves = builder.moves
        nothing_changed = self._base.version > 0 and same_state(self._base, manifest)
        tracker.on_commit()
        if not nothing_changed:
            tracker.manifest = commit(tracker.io, manifest)
        self._publish(captured, builder, unsaved)
        notes = {note: None for entry in builder.units.values() for note in entry.header.notes}
        return SaveReport(
            version=tracker.version, dirty_regions=moves.dirty_regions, total_regions=moves.total_regions,
            bytes_moved=moves.bytes_moved, units_written=moves.units_written, unsaved=tuple(unsaved.values()),
            notes=tuple(notes), elapsed_s=time.monotonic() - started_s, nothing_changed=nothing_changed,
            lazy_bytes=manifest.lazy_bytes(),
        )  # fmt: skip

    def _sort_variables(self) -> tuple[list[tuple[str, Any]], dict[str, UnitId], dict[str, Unsaved]]:
        """(live variables, stored ones by unit, variables that no version can hold)."""
        live: list[tuple[str, Any]] = []
        stored: dict[str, UnitId] = {}
        unsaved: dict[str, Unsaved] = {}
        for count, (name, value) in enumerate(self._tracker.variables()):
            if len(name) > _NAME_CHARS_MAX or not is_encodable(name):
                shown = f"a name {name[:_NAME_SHOWN_CHARS]!a}…"
                text = "it is too long, or no text: choose another one"
                unsaved[shown] = self._unsaved(shown, "NAME_UNUSABLE", shown, text)
            elif count >= NAMES_MAX:
                # Each by name, then all together: the report has limits of its own.
                shown = name if count < NAMES_MAX + _NAMED_BEYOND_MAX else "all further variables"
                text = f"a session can save {NAMES_MAX} variables: delete some"
                unsaved[shown] = self._unsaved(shown, "TOO_MANY_NAMES", shown, text)
            elif not is_stub(value):
                live.append((name, value))
            else:
                self._sort_stub(name, value, stored, unsaved)
        return live, stored, unsaved

    def _sort_stub(self, name: str, stub: Stub, stored: dict[str, UnitId], unsaved: dict[str, Unsaved]) -> None:
        unit_id, why = unit_id_of(stub), unsaved_of(stub)
        if why is not None:
            unsaved[name] = replace(why, name=name)
        elif unit_id is not None and unit_id in self._base.units:
            stored[name] = unit_id
        else:
            text = f"it stands for a value of `{name_of(stub)}` that was deleted from the session"
            unsaved[name] = self._unsaved(name, "STALE_STUB", name, text)

    def _unsaved(self, name: str, reason: str, path: str, detail: str) -> Unsaved:
        """The entry, dated back if it stands since an earlier version."""
        before = self._tracker.unsaved_here.get(name)
        since = self._base.version + 1
        if before is not None and (before.reason, before.path) == (reason, path):
            since = before.since_version
        return Unsaved(name, reason, path, detail, since)

    def _capture(self, live: list[tuple[str, Any]]) -> tuple[Captured, list[Unsaved]]:
        tracker = self._tracker
        patches = tracker.record.get("patches", {})
        record, problems = tracker.process.read(tracker.record, lambda: tracker.patches.find(patches))
        captured, unit_id = self._capture_with(live, record)
        if unit_id in captured.failed_units:
            failure = captured.failed_units[unit_id]
            problems.append(self._unsaved(PROCESS_STATE_NAME, failure.reason, PROCESS_STATE_NAME, failure.detail))
            record["patches"] = {}
            record["warnings"] = without_session_categories(record["warnings"])
            for section in ("torch_hooks", "matplotlib", "pandas", "inline", "logging", "ipython"):
                record.pop(section, None)
            captured, unit_id = self._capture_with(live, record)
        self._record = record
        return captured, problems

    def _capture_with(self, live: list[tuple[str, Any]], record: Record) -> tuple[Captured, UnitId]:
        unit_id = self._base.process_state or UnitId(self._labels.new_id())
        self._process_unit = unit_id
        held: list[tuple[UnitId, Any]] = [(unit_id, record)]
        for needed in sorted(self._tracker.needed_here()):
            value = self._labels.live(needed) if needed in self._base.units else None
            if isinstance(value, Bundle) or (value is not None and self._labels.unit_id_of(value) == needed):
                held.append((UnitId(needed), value))
        captured = capture(
            self._tracker.namespace, live, self._labels, self._base, held, self._labels.held_memory()
        )
        return captured, unit_id

    def _bring_here(self, captured: Captured, stored: dict[str, UnitId]) -> bool:
        """Loads stored variables that need an object which cannot be saved any more; whether there were some.

        No version can hold them either; here they live on beside that object, until both can be saved again.
        """
        names = [name for name, unit_id in stored.items() if unit_id in captured.failed_units]
        if not names:
            return False
        with self._tracker.rebinding():
            return bool(self._tracker.restore(names).restored)

    def _add_failures(self, captured: Captured, stored: dict[str, UnitId], unsaved: dict[str, Unsaved]) -> None:
        for name, (failure, path) in captured.failures.items():
            unsaved[name] = self._unsaved(name, failure.reason, path, failure.detail)
        for name, unit_id in stored.items():
            if unit_id in captured.failed_units:
                failure = captured.failed_units[unit_id]
                unsaved[name] = self._unsaved(name, failure.reason, name, failure.detail)

    def _add_lost(self, captured: Captured, stored: dict[str, UnitId], unsaved: dict[str, Unsaved]) -> None:
        """Variables that need lazy bytes which nobody has any more. Only their one holder can tell."""
        if not self._tracker.is_kernel:
            return
        here = {block.payload_id for block in captured.payloads}
        lost = {int(i): i for i, entry in self._base.payloads.items() if entry.is_lazy and i not in here}
        if not lost:
            return
        drafts, units = captured.drafts, self._base.units

        def refs(some_id: int) -> Iterable[int]:
            if (draft := drafts.get(UnitId(some_id))) is not None:
                return sorted(draft.refs)
            entry = units.get(UnitId(some_id))
            return () if entry is None else (*entry.header.refs, *entry.header.payloads)

        reached = closed_under(lost, [*map(int, drafts), *map(int, units)], refs)
        for name, unit_id in {**stored, **captured.roots}.items():
            if unit_id in reached and name not in unsaved:
                entry = not_committed(name)
                unsaved[name] = self._unsaved(name, entry.reason, entry.path, entry.detail)

    def _build(self, captured: Captured, roots: dict[str, UnitId], *, copy_dirty: bool) -> VersionBuilder:
        tracker = self._tracker
        builder = VersionBuilder(
            self._base, captured, tracker.device_hashes, copy_dirty=copy_dirty, shadows=tracker.shadows
        )
        process = [] if self._process_unit in captured.failed_units else [self._process_unit]
        complete = None if self._needed is None else builder.needed_payloads(self._needed, roots, process)
        builder.build([*roots.values(), *process], complete, tracker.lazy_budget())
        return builder

    def _manifest_of(
        self, builder: VersionBuilder, roots: dict[str, UnitId], unsaved: dict[str, Unsaved]
    ) -> Manifest:
        old, tracker, source = self._base, self._tracker, self._source
        gone = [*old.tombstones, *(name for name in old.roots if name not in tracker.namespace)]
        gone += [entry.name for entry in old.unsaved if entry.name not in tracker.namespace and not entry.is_place]
        tombstones = [name for name in dict.fromkeys(gone) if name not in roots and name not in unsaved]
        return Manifest(
            session_id=tracker.session_id, version=Version(old.version + 1), parent=old.version, epoch=tracker.epoch,
            execution_id=self._execution_id, created_unix_ms=time.time_ns() // 1_000_000, label=self._label,
            next_id=self._labels.next_id, roots=roots, units=builder.units, payloads=builder.payloads,
            process_state=self._process_unit if self._process_unit in builder.units else None,
            tombstones=tuple(tombstones[-TOMBSTONES_MAX:]), unsaved=tuple(unsaved.values()),
            cell_source_hash=hash128(source.encode("utf-8", "replace")) if source else b"",
            cell_id=self._cell_id or CellId(""),
        )  # fmt: skip

    def _publish(self, captured: Captured, builder: VersionBuilder, unsaved: dict[str, Unsaved]) -> None:
        """The new tables, after the commit only."""
        atoms = {id(captured.drafts[unit_id]) for unit_id in self._labels.atoms.values() if unit_id in captured.drafts}
        blocks = {unit_id for unit_id, _ in captured.inline}
        heads = [
            (unit_id, draft.value, self._is_small(builder, unit_id))
            for unit_id, draft in captured.drafts.items()
            if unit_id in builder.units and unit_id not in blocks and id(draft) not in atoms
            and unit_id != self._process_unit
        ]  # fmt: skip
        places = [
            (int(block.payload_id), block)
            for block in captured.payloads
            if block.payload_id in builder.payloads and not block.is_late
        ]
        places += [(unit_id, block) for unit_id, block in captured.inline if unit_id in builder.units]
        labels, tracker = self._labels, self._tracker
        tracker.device_hashes.keep(builder.payloads)
        if tracker.shadows is not None:
            tracker.shadows.publish(builder.checked)
        labels.replace(heads, places)
        labels.keep_late(builder.payloads)
        labels.keep_strings(block for block in captured.payloads if _is_lazy(builder, block))
        labels.atoms = {name: u for name, u in labels.atoms.items() if captured.roots.get(name) == u}
        tracker.units_of_inner_stubs = {unit_id_of(stub) or 0 for stub in captured.graph.stubs}
        labels.hold_exactly(tracker.needed_here())
        tracker.record = self._record
        if self._process_unit in builder.units:
            tracker.applied_process_state = builder.units[self._process_unit].hash
        tracker.unsaved_here = {name: entry for name, entry in unsaved.items() if not self._is_stub(name)}
        live = tracker.namespace
        tracker.saved_bindings = {name: id(live[name]) for name in captured.roots if name in live}
        for name, entry in unsaved.items():
            # Its unit is in no version from here on: each save would find that out anew, as if it had just happened.
            if is_stub(stub := live.get(name)) and unsaved_of(stub) is None:
                live[name] = Stub(name, None, None, entry)

    def _is_stub(self, name: str) -> bool:
        return is_stub(self._tracker.namespace.get(name))

    def _is_small(self, builder: VersionBuilder, unit_id: UnitId) -> bool:
        header = builder.units[unit_id].header
        size = sum(header.device_bytes.values())
        size += sum(sum(builder.units[ref].header.device_bytes.values()) for ref in header.refs)
        return size <= HELD_BYTES_MAX


def _is_lazy(builder: VersionBuilder, block: Block) -> bool:
    entry = builder.payloads.get(block.payload_id) if block.payload_id is not None else None
    return entry is not None and entry.is_lazy
