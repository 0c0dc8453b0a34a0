"""A session's live state and its versions in the store: save, restore, follow other holders (design §3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from looseleaf.checkpoint.advance import Advancer
from looseleaf.checkpoint.ahead import Ahead
from looseleaf.checkpoint.device_hashes import DeviceHashes
from looseleaf.checkpoint.facts import light_header
from looseleaf.checkpoint.history import made_newest
from looseleaf.checkpoint.labels import Labels
from looseleaf.checkpoint.lazy import NOT_COMMITTED, Budget
from looseleaf.checkpoint.loader import Loader
from looseleaf.checkpoint.manifest import Manifest, UnitHeader, Unsaved, decode_manifest
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.paranoid import Shadows, is_paranoid
from looseleaf.checkpoint.patches import PatchFinder
from looseleaf.checkpoint.persons_code import out_of_memory
from looseleaf.checkpoint.process_state import ProcessState, Record
from looseleaf.checkpoint.reports import AdvanceReport, RestoreReport, SaveReport
from looseleaf.checkpoint.restorer import Restorer
from looseleaf.checkpoint.saver import commit
from looseleaf.checkpoint.saving import Saving
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.checkpoint.stub import header_of, is_stub, unit_id_of
from looseleaf.errors import NotFound
from looseleaf.ids import CellId, Epoch, ExecutionId, SessionId, Version


class StateTracker:
    """One holder's view of a session. Its calls come from one thread at a time, between cells.

    `namespace`: the live globals of the session's cells. `hidden(name)`: it is no variable of the person's. A variable
    whose value lives only in the store holds a Stub; deleting or rebinding it counts as on any kernel.
    `is_kernel`: this is the session's own process, the one that may keep bytes to itself. `paranoid`: see paranoid.py;
    None: as the process is set up.
    """

    def __init__(
        self, namespace: dict[str, Any], io: StateIO, *, session_id: SessionId, epoch: Epoch,
        hidden: Callable[[str], bool], is_kernel: bool = False, paranoid: bool | None = None,
    ) -> None:  # fmt: skip
        self.namespace = namespace
        self.io = io
        self.session_id = session_id
        self.epoch = epoch
        self.hidden = hidden
        self.is_kernel = is_kernel
        self.manifest = Manifest(session_id, epoch=epoch)
        self.labels = Labels()
        self.process = ProcessState()
        self.patches = PatchFinder(namespace)
        self.record: Record = {}
        # Hash of the process state unit that this process follows; None until one was set or saved.
        self.applied_process_state: bytes | None = None
        self.unsaved_here: dict[str, Unsaved] = {}
        # What each saved variable was bound to, as an id only: a hint that the saved header still describes it.
        self.saved_bindings: dict[str, int] = {}
        # Called by each save when all that may be broken off is done: what follows commits and renews these tables.
        self.on_commit: Callable[[], None] = lambda: None
        # Called by a restore with the name of each module before it imports it, and with an empty one after the last.
        self.on_import: Callable[[str], None] = lambda _name: None
        # Entered while a save binds variables anew: values for stand-ins.
        self.rebinding: Callable[[], AbstractContextManager[None]] = nullcontext
        # What a save for some variables may still spend on the others.
        self.lazy_budget: Callable[[], Budget] = Budget
        # What the next restores need not ask for.
        self.ahead = Ahead()
        # Values that no version has and that hold an older state of others: (variable, path), not told yet.
        self._stale: list[tuple[str, str]] = []
        self.device_hashes = DeviceHashes()
        # What saves compare with byte by byte; None unless that is wanted.
        self.shadows = Shadows() if (is_paranoid() if paranoid is None else paranoid) else None
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
        self, execution_id: ExecutionId, label: str = "", *, source: str = "", cell_id: CellId | None = None,
        needed: Collection[str] | None = None,
    ) -> SaveReport:  # fmt: skip
        """Commits the live state as a new version, or none if nothing changed.

        `needed`: variables that the version must hold with all that they need, None for every one. Bytes of others that
        cost too much become lazy (see lazy.py): the next save without `needed` does them. For the kernel only.

        What cannot be saved is reported by name and never fails the save. Raises Conflict, PreconditionFailed,
        CapacityExceeded, Unavailable, Timeout or InvalidArgument (a limit of the manifest); then nothing changed, and
        the next save does all of it.
        """
        assert needed is None or self.is_kernel, "who is gone soon keeps nothing to itself"
        given_out = self.labels.given_out()
        try:
            with raw_access():
                return Saving(self, execution_id, label, source, cell_id, needed).run()
        except BaseException as error:
            self.labels.take_back(given_out)
            if isinstance(error, MemoryError):
                raise out_of_memory("the cell's changes were not saved") from error
            raise

    def needed_here(self) -> set[int]:
        """Ids of live units and payloads that stubs, or units which are not loaded, refer to."""
        live = self.labels.live_ids()
        needed: set[int] = set(self.units_of_inner_stubs)
        needed.update(unit_id_of(value) or 0 for _, value in self.variables() if is_stub(value))
        for unit_id, entry in self.manifest.units.items():
            if unit_id not in live:
                needed.update(entry.header.refs)
                needed.update(entry.header.payloads)
        # Byte strings cannot be held weakly: from here on nobody else might have their bytes.
        needed.update(i for i, entry in self.manifest.payloads.items() if entry.is_lazy and entry.kind != "memory")
        return needed & live

    def _is_stub(self, name: str) -> bool:
        return is_stub(self.namespace.get(name))

    def restore(
        self, names: Iterable[str], *, imports: Iterable[str] = (), version: int = 0, soon: Iterable[str] = ()
    ) -> RestoreReport:
        """Makes `names`, and what their code reads by name, live; every other variable of the session gets a stub.

        The first call also sets the process state. `version`: the one wanted, 0 for the newest; a newer one than held
        is followed first. `soon`: names of later calls, whose small units are asked for together with these, where a
        version is followed, and whose payloads are mapped when it returns (`ahead`). Raises what the StateIO raises,
        and then no variable has another value than before; a value that cannot be made again is reported, not raised.
        """
        wanted, soon = list(names), list(soon)
        is_behind = self.manifest.version == 0 or version > self.manifest.version
        if is_behind:
            self.ahead.units = self._follow(Version(version), [*wanted, *soon])
            self.ahead.renew(self.manifest)
        restorer = Restorer(self)
        report = restorer.restore(wanted, list(imports), self.ahead)
        if soon:
            self.ahead.names = set(soon)
            restorer.map_ahead(self.ahead)
        self.ahead.asked_for(wanted)
        self.ahead.unmap(self.io)
        return report

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
        lost = [f"`{e.name}` was not saved: {e.detail}" for e in found.unsaved if e.reason == NOT_COMMITTED]
        return replace(report, problems=(*report.problems, *lost))

    def note_stale(self, stale: Iterable[tuple[str, str]]) -> None:
        """A newer version was followed; these must be told to the person."""
        self._stale += stale

    def take_stale(self) -> list[tuple[str, str]]:
        """Each of them once: values that no version has and that hold an older state of others, with their paths."""
        stale, self._stale = self._stale, []
        return stale

    def stub_names(self) -> list[str]:
        """Variables whose value is not loaded here."""
        return [name for name, value in self.variables() if is_stub(value)]

    def materialise(self, names: Iterable[str]) -> RestoreReport:
        """Loads those of `names` that are stubs, with what their code reads."""
        return self.restore([name for name in names if self._is_stub(name)])

    def describe(self, name: str) -> UnitHeader:
        """What can be told of a variable without loading it. Raises NotFound `NAME_UNKNOWN`."""
        if name not in self.namespace:
            raise NotFound("NAME_UNKNOWN", f"there is no variable `{name}`", name=name)
        value = self.namespace[name]
        if is_stub(value):
            return header_of(value) or UnitHeader()
        unit_id = self.manifest.roots.get(name)
        saved = self.manifest.units[unit_id].header if unit_id is not None else None
        with raw_access():
            return light_header(value, saved if self.saved_bindings.get(name) == id(value) else None)

    def facts(self) -> dict[str, UnitHeader]:
        """`describe` of every variable."""
        return {name: self.describe(name) for name, _ in self.variables()}
