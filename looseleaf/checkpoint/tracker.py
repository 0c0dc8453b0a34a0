"""A session's live state and its versions in the store: save, restore, follow other holders (design §3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from looseleaf.checkpoint.advance import Advancer
from looseleaf.checkpoint.bundles import Bundle
from looseleaf.checkpoint.capture import Captured, capture
from looseleaf.checkpoint.facts import light_header
from looseleaf.checkpoint.history import made_newest
from looseleaf.checkpoint.labels import HELD_BYTES_MAX, Labels
from looseleaf.checkpoint.loader import Loader
from looseleaf.checkpoint.manifest import NAMES_MAX, Manifest, UnitHeader, Unsaved, decode_manifest
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.patches import find_patches
from looseleaf.checkpoint.previews import is_encodable
from looseleaf.checkpoint.process_state import ProcessState, Record
from looseleaf.checkpoint.reports import AdvanceReport, RestoreReport, SaveReport
from looseleaf.checkpoint.restorer import Restorer
from looseleaf.checkpoint.saver import VersionBuilder, commit, same_state, with_retry
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.checkpoint.stub import Stub, header_of, name_of, unit_id_of, unsaved_of
from looseleaf.checkpoint.warning_filters import without_session_categories
from looseleaf.dirty_tracker import hash128
from looseleaf.errors import NotFound
from looseleaf.ids import CellId, Epoch, ExecutionId, SessionId, UnitId, Version

_NAME_CHARS_MAX = 1000
# Deleted variables that a manifest still lists.
TOMBSTONES_MAX = 4096
PROCESS_STATE_NAME = "(process state)"


class StateTracker:
    """One holder's view of a session. Its calls come from one thread at a time, between cells.

    `namespace`: the live globals of the session's cells. `hidden(name)`: it is no variable of the person's. A variable
    whose value lives only in the store holds a Stub; deleting or rebinding it counts as on any kernel.
    """

    def __init__(
        self, namespace: dict[str, Any], io: StateIO, *, session_id: SessionId, epoch: Epoch,
        hidden: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self.namespace = namespace
        self.io = io
        self.session_id = session_id
        self.epoch = epoch
        self.hidden = hidden
        self.manifest = Manifest(session_id, epoch=epoch)
        self.labels = Labels()
        self.process = ProcessState()
        self.record: Record = {}
        # Hash of the process state unit that this process follows; None until one was set or saved.
        self.applied_process_state: bytes | None = None
        self.unsaved_here: dict[str, Unsaved] = {}
        # What each saved variable was bound to, as an id only: a hint that the saved header still describes it.
        self.saved_bindings: dict[str, int] = {}
        # Called by each save when all that may be broken off is done: what follows commits and renews these tables.
        self.on_commit: Callable[[], None] = lambda: None
        # Units that stubs inside live containers stood for at the last save.
        self.units_of_inner_stubs: set[int] = set()

    @property
    def version(self) -> Version:
        """The version that the live state was last saved as or restored from; 0 before the first."""
        return self.manifest.version

    def variables(self) -> list[tuple[str, Any]]:
        """(name, value) of the person's variables, in the namespace's order."""
        items = list(self.namespace.items())
        return [(name, value) for name, value in items if type(name) is str and not self.hidden(name)]

    def save(
        self, execution_id: ExecutionId, label: str = "", *, source: str = "", cell_id: CellId | None = None
    ) -> SaveReport:
        """Commits the live state as a new version, or none if nothing changed.

        What cannot be saved is reported by name and never fails the save. Raises Conflict, PreconditionFailed,
        CapacityExceeded, Unavailable, Timeout or InvalidArgument (a limit of the manifest); then nothing changed, and
        the next save does all of it.
        """
        started_s = time.monotonic()
        given_out = self.labels.given_out()
        try:
            with raw_access():
                return self._save(execution_id, label, source, cell_id, started_s)
        except BaseException:
            self.labels.take_back(given_out)
            raise

    def _save(
        self, execution_id: ExecutionId, label: str, source: str, cell_id: CellId | None, started_s: float
    ) -> SaveReport:
        live, stored, unsaved = self._sort_variables()
        captured, secrets = self._capture(live)
        for entry in secrets:
            unsaved[entry.name] = entry
        self._add_failures(captured, stored, unsaved)
        roots = {
            name: captured.roots[name] if name in captured.roots else stored[name]
            for name, _ in self.variables()
            if name not in unsaved and (name in captured.roots or name in stored)
        }
        builder: VersionBuilder = with_retry(
            lambda copy_dirty: self._build(captured, roots, copy_dirty=copy_dirty), self.io
        )
        manifest = self._manifest_of(builder, roots, unsaved, execution_id, label, source, cell_id)
        moves = builder.moves
        nothing_changed = self.manifest.version > 0 and same_state(self.manifest, manifest)
        self.on_commit()
        if not nothing_changed:
            self.manifest = commit(self.io, manifest)
        self._publish(captured, builder, unsaved)
        notes = {note: None for entry in builder.units.values() for note in entry.header.notes}
        return SaveReport(
            version=self.version, dirty_regions=moves.dirty_regions, total_regions=moves.total_regions,
            bytes_moved=moves.bytes_moved, units_written=moves.units_written, unsaved=tuple(unsaved.values()),
            notes=tuple(notes), elapsed_s=time.monotonic() - started_s, nothing_changed=nothing_changed,
        )  # fmt: skip

    def _sort_variables(self) -> tuple[list[tuple[str, Any]], dict[str, UnitId], dict[str, Unsaved]]:
        """(live variables, stored ones by unit, variables that no version can hold)."""
        live: list[tuple[str, Any]] = []
        stored: dict[str, UnitId] = {}
        unsaved: dict[str, Unsaved] = {}
        for count, (name, value) in enumerate(self.variables()):
            if len(name) > _NAME_CHARS_MAX or not is_encodable(name):
                continue
            if count >= NAMES_MAX:
                text = f"a session can save {NAMES_MAX} variables: delete some"
                unsaved[name] = self._unsaved(name, "TOO_MANY_NAMES", name, text)
            elif type(value) is not Stub:
                live.append((name, value))
            else:
                self._sort_stub(name, value, stored, unsaved)
        return live, stored, unsaved

    def _sort_stub(self, name: str, stub: Stub, stored: dict[str, UnitId], unsaved: dict[str, Unsaved]) -> None:
        unit_id, why = unit_id_of(stub), unsaved_of(stub)
        if why is not None:
            unsaved[name] = replace(why, name=name)
        elif unit_id is not None and unit_id in self.manifest.units:
            stored[name] = unit_id
        else:
            text = f"it stands for a value of `{name_of(stub)}` that was deleted from the session"
            unsaved[name] = self._unsaved(name, "STALE_STUB", name, text)

    def _unsaved(self, name: str, reason: str, path: str, detail: str) -> Unsaved:
        """The entry, dated back if it stands since an earlier version."""
        before = self.unsaved_here.get(name)
        since = self.manifest.version + 1
        if before is not None and (before.reason, before.path) == (reason, path):
            since = before.since_version
        return Unsaved(name, reason, path, detail, since)

    def _capture(self, live: list[tuple[str, Any]]) -> tuple[Captured, list[Unsaved]]:
        patches = self.record.get("patches", {})
        record, problems = self.process.read(self.record, lambda: find_patches(self.namespace, patches))
        captured, unit_id = self._capture_with(live, record)
        if unit_id in captured.failed_units:
            failure = captured.failed_units[unit_id]
            problems.append(self._unsaved(PROCESS_STATE_NAME, failure.reason, PROCESS_STATE_NAME, failure.detail))
            record["patches"] = {}
            record["warnings"] = without_session_categories(record["warnings"])
            for section in ("matplotlib", "pandas", "inline", "logging", "ipython"):
                record.pop(section, None)
            captured, unit_id = self._capture_with(live, record)
        self._new_record = record
        return captured, problems

    def _capture_with(self, live: list[tuple[str, Any]], record: Record) -> tuple[Captured, UnitId]:
        unit_id = self.manifest.process_state or UnitId(self.labels.new_id())
        self._process_unit = unit_id
        held: list[tuple[UnitId, Any]] = [(unit_id, record)]
        for needed in sorted(self.needed_here()):
            value = self.labels.live(needed) if needed in self.manifest.units else None
            if isinstance(value, Bundle) or (value is not None and self.labels.unit_id_of(value) == needed):
                held.append((UnitId(needed), value))
        captured = capture(
            self.namespace, live, self.labels, self.manifest, held, self.labels.held_memory()
        )
        return captured, unit_id

    def needed_here(self) -> set[int]:
        """Ids of live units and payloads that stubs, or units which are not loaded, refer to."""
        live = self.labels.live_ids()
        needed: set[int] = set(self.units_of_inner_stubs)
        needed.update(unit_id_of(value) or 0 for _, value in self.variables() if type(value) is Stub)
        for unit_id, entry in self.manifest.units.items():
            if unit_id not in live:
                needed.update(entry.header.refs)
                needed.update(entry.header.payloads)
        return needed & live

    def _add_failures(self, captured: Captured, stored: dict[str, UnitId], unsaved: dict[str, Unsaved]) -> None:
        for name, (failure, path) in captured.failures.items():
            unsaved[name] = self._unsaved(name, failure.reason, path, failure.detail)
        for name, unit_id in stored.items():
            if unit_id in captured.failed_units:
                failure = captured.failed_units[unit_id]
                unsaved[name] = self._unsaved(name, failure.reason, name, failure.detail)

    def _build(self, captured: Captured, roots: dict[str, UnitId], *, copy_dirty: bool) -> VersionBuilder:
        builder = VersionBuilder(self.manifest, captured, copy_dirty=copy_dirty)
        heads = list(roots.values())
        if self._process_unit not in captured.failed_units:
            heads.append(self._process_unit)
        builder.build(heads)
        return builder

    def _manifest_of(
        self, builder: VersionBuilder, roots: dict[str, UnitId], unsaved: dict[str, Unsaved],
        execution_id: ExecutionId, label: str, source: str, cell_id: CellId | None,
    ) -> Manifest:  # fmt: skip
        old = self.manifest
        gone = [*old.tombstones, *(name for name in old.roots if name not in self.namespace)]
        gone += [entry.name for entry in old.unsaved if entry.name not in self.namespace and not entry.is_place]
        tombstones = [name for name in dict.fromkeys(gone) if name not in roots and name not in unsaved]
        return Manifest(
            session_id=self.session_id, version=Version(old.version + 1), parent=old.version, epoch=self.epoch,
            execution_id=execution_id, created_unix_ms=time.time_ns() // 1_000_000, label=label,
            next_id=self.labels.next_id, roots=roots, units=builder.units, payloads=builder.payloads,
            process_state=self._process_unit if self._process_unit in builder.units else None,
            tombstones=tuple(tombstones[-TOMBSTONES_MAX:]), unsaved=tuple(unsaved.values()),
            cell_source_hash=hash128(source.encode("utf-8", "replace")) if source else b"",
            cell_id=cell_id or CellId(""),
        )  # fmt: skip

    def _publish(self, captured: Captured, builder: VersionBuilder, unsaved: dict[str, Unsaved]) -> None:
        """The new tables, after the commit only."""
        atoms = {id(captured.drafts[unit_id]) for unit_id in self.labels.atoms.values() if unit_id in captured.drafts}
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
        self.labels.replace(heads, places)
        self.labels.keep_late(builder.payloads)
        self.labels.atoms = {name: u for name, u in self.labels.atoms.items() if captured.roots.get(name) == u}
        stubs = [captured.graph.object(node) for node in captured.graph.nodes_of_type(Stub)]
        self.units_of_inner_stubs = {unit_id_of(stub) or 0 for stub in stubs}
        self.labels.hold_exactly(self.needed_here())
        self.record = self._new_record
        if self._process_unit in builder.units:
            self.applied_process_state = builder.units[self._process_unit].hash
        self.unsaved_here = {name: entry for name, entry in unsaved.items() if not self._is_stub(name)}
        self.saved_bindings = {name: id(self.namespace[name]) for name in captured.roots if name in self.namespace}

    def _is_stub(self, name: str) -> bool:
        return type(self.namespace.get(name)) is Stub

    def _is_small(self, builder: VersionBuilder, unit_id: UnitId) -> bool:
        header = builder.units[unit_id].header
        size = sum(header.device_bytes.values())
        size += sum(sum(builder.units[ref].header.device_bytes.values()) for ref in header.refs)
        return size <= HELD_BYTES_MAX

    def restore(self, names: Iterable[str], *, imports: Iterable[str] = (), version: int = 0) -> RestoreReport:
        """Makes `names`, and what their code reads by name, live; every other variable of the session gets a stub.

        The first call also sets the process state. `version`: the one wanted, 0 for the newest; a newer one than held
        is followed first. Raises what the StateIO raises, and then no variable has another value than before; a value
        that cannot be made again is reported, not raised.
        """
        wanted = list(names)
        is_behind = self.manifest.version == 0 or version > self.manifest.version
        fetched = self._follow(Version(version), wanted) if is_behind else {}
        return Restorer(self).restore(wanted, list(imports), fetched)

    def _follow(self, version: Version, names: list[str]) -> Mapping[bytes, bytes]:
        """Advances to the version; what of it `names` need is asked for before anything changes here."""
        _, data = self.io.manifest(version)
        if data is None and version:
            raise NotFound("VERSION_UNKNOWN", f"version {version} of this session is not in the store", version=version)
        if data is None:
            return {}
        new = decode_manifest(data)
        heads = [new.roots[name] for name in new.closure(names).names]
        heads += [] if new.process_state is None else [new.process_state]
        fetched = Loader(new, self.io, self.namespace, self.labels.live).fetch(heads)
        Advancer(self).advance(new)
        return fetched

    def advance(self, manifest_bytes: bytes) -> AdvanceReport:
        """Follows a version that another holder committed: whatever reaches a changed unit becomes a stub here.

        Raises Corrupt or InvalidArgument for a bad manifest, PreconditionFailed `OTHER_SESSION`.
        """
        return Advancer(self).advance(decode_manifest(manifest_bytes))

    def check_out(self, manifest_bytes: bytes, execution_id: ExecutionId) -> AdvanceReport:
        """Makes a version of this or another session the newest one of this session, and follows it.

        What is live and not saved is given up: save first. Variables that the version does not know are deleted, the
        others become stubs where they differ. Raises as `save` and `advance`; then nothing changed.
        """
        found = made_newest(
            decode_manifest(manifest_bytes), self.manifest, session_id=self.session_id, epoch=self.epoch,
            execution_id=execution_id, now_unix_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        report = Advancer(self).advance(commit(self.io, found))
        # In a process that never held a version the process state is set only by a restore.
        self.restore([])
        return report

    def stub_names(self) -> list[str]:
        """Variables whose value is not loaded here."""
        return [name for name, value in self.variables() if type(value) is Stub]

    def materialise(self, names: Iterable[str]) -> RestoreReport:
        """Loads those of `names` that are stubs, with what their code reads."""
        return self.restore([name for name in names if self._is_stub(name)])

    def describe(self, name: str) -> UnitHeader:
        """What can be told of a variable without loading it. Raises NotFound `NAME_UNKNOWN`."""
        if name not in self.namespace:
            raise NotFound("NAME_UNKNOWN", f"there is no variable `{name}`", name=name)
        value = self.namespace[name]
        if type(value) is Stub:
            return header_of(value) or UnitHeader()
        unit_id = self.manifest.roots.get(name)
        saved = self.manifest.units[unit_id].header if unit_id is not None else None
        with raw_access():
            return light_header(value, saved if self.saved_bindings.get(name) == id(value) else None)

    def facts(self) -> dict[str, UnitHeader]:
        """`describe` of every variable."""
        return {name: self.describe(name) for name, _ in self.variables()}
