"""Older versions of the notebook's own session: look at them, go back to one, take variables out of one (design §3).

Nothing is lost by it: what was not committed is committed first, and a checkout is a new version on top.
"""

from __future__ import annotations

import keyword
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.checkpoint.history import Change, changes, differ
from looseleaf.checkpoint.lazy import without_lost
from looseleaf.checkpoint.manifest import Manifest, decode_manifest
from looseleaf.checkpoint.old_version import let_go, load_copies
from looseleaf.checkpoint.stub import is_stub
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.checkpoint.version_list import ListedVersion, find_version
from looseleaf.errors import InvalidArgument, LooseLeafError, NotFound, PreconditionFailed
from looseleaf.ids import Version, new_execution_id
from looseleaf.kernel.before_cell import load_names
from looseleaf.kernel.needs import device_bytes
from looseleaf.kernel.session import KernelSession
from looseleaf.protocol.state_io import LinkStateIO
from looseleaf.recipe.analyze import analyze_cell

log = logging.getLogger("looseleaf.kernel")

# Manifests that a search for a variable's earlier value reads; each is read from the store.
SEARCHED_VERSIONS_MAX: Final = 100
NAMES_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class CheckedOut:
    """`source`: the version gone back to; `version`: its new number. `before`: the version with what was there.

    `kept`: variables that no version can hold and that stayed as they are. `dropped`: such ones that went.
    """

    source: Version
    version: Version
    before: Version
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """`source`: where the values are from. `bound`: the variables that have them now; `same`: those that had them
    already. `before`: the version with what was there. `problem`: why the result is not saved yet, empty if it is."""

    source: Version
    before: Version
    bound: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    problem: str = ""


class TimeTravel:
    """The session's history for its own notebook. `runs_elsewhere()`: a worker runs a cell and so owns the state.

    Reading may happen on any thread, changes on the main thread only; they raise a LooseLeafError before anything has
    changed. `hidden(name)`: it is no variable of the person's.
    """

    def __init__(
        self, session: KernelSession, hidden: Callable[[str], bool], runs_elsewhere: Callable[[], bool]
    ) -> None:
        self._session = session
        self._hidden = hidden
        self._runs_elsewhere = runs_elsewhere

    # -- looking ---------------------------------------------------------------------------------------

    def versions(self, limit: int = 0) -> list[ListedVersion]:
        """The kept versions, newest first. Raises Unavailable `NO_CLUSTER` or the store's error."""
        return LinkStateIO(self._session.connect()).versions(limit)

    def changes(self, versions: Sequence[int]) -> tuple[Version, Version, list[Change]]:
        """(earlier, later, what differs). Of no version: the one before the newest and the present state; of one: that
        and the present state. Raises as `versions`, NotFound `VERSION_UNKNOWN` or `VERSION_PRUNED`."""
        if len(versions) < 2 and self._may_change():
            self._commit()
        kept = self.versions()
        old = find_version(kept, versions[0] if versions else -1)
        new = find_version(kept, versions[1]) if len(versions) > 1 else Version(kept[0].version)
        return old, new, changes(self._manifest(old), self._manifest(new))

    def _manifest(self, version: Version) -> Manifest:
        """A version, with variables of which it lacks bytes as unsaved ones."""
        return without_lost(decode_manifest(self._manifest_bytes(version)), {})

    def _manifest_bytes(self, version: Version) -> bytes:
        _head, data = LinkStateIO(self._session.connect()).manifest(version)
        if data is None:
            raise NotFound("VERSION_UNKNOWN", f"version {version} of this session is not in the store", version=version)
        return data

    # -- changing --------------------------------------------------------------------------------------

    def check_out(self, wanted: int, *, force: bool = False) -> CheckedOut:
        """Makes the whole state that of an older version, as a new version; a checkout of `before` undoes it.

        A value that no version can hold stays where it is unless the version has another value of its name: then it is
        refused as `UNSAVED_WOULD_GO`, or with `force` the value is given up. Raises as `changes`.
        """
        tracker = self._committed()
        source, before = find_version(self.versions(), wanted), tracker.version
        if source == before:
            return CheckedOut(source, before, before)
        data = self._manifest_bytes(source)
        known = self._manifest(source).roots
        unsaved = {name: tracker.namespace[name] for name in tracker.unsaved_here if name in tracker.namespace}
        dropped = sorted(name for name in unsaved if name in known)
        if dropped and not force:
            text = (
                f"{_names(dropped)} could not be saved, and version {source} has another value of the name: going back "
                f"would lose it. Nothing was changed; bind it to another name first, or say --force"
            )
            raise PreconditionFailed("UNSAVED_WOULD_GO", text, names=dropped)
        kept = sorted(unsaved.keys() - set(dropped))
        with self._session.rebinding():
            report = tracker.check_out(data, new_execution_id())
            for name in kept:
                tracker.namespace[name] = unsaved[name]
        self._session.runs.check_out(source, tracker.version)
        self._session.changed()
        log.info("checked_out source=%s version=%s", source, tracker.version)
        return CheckedOut(source, tracker.version, before, tuple(kept), tuple(dropped), report.problems)

    def restore(self, names: Sequence[str], version: int = 0, target: str = "") -> Restored:
        """Gives `names` the values that a version has of them and leaves all others as they are.

        What the names share in that version they share again; with other variables they share no data (see
        `load_copies`). `version` 0: the newest earlier one that has them all and tells one of them differently.
        `target`: the name for the one of `names` instead of its own. All or none: raises as `changes`, NotFound
        `NOT_IN_VERSION`, PreconditionFailed `NOT_RESTORED`, InvalidArgument `NAME_REFUSED`.
        """
        for name in [target] if target else names:
            self._check_target(name)
        tracker = self._committed()
        before, present = tracker.version, tracker.manifest
        if version:
            old = self._manifest(find_version(self.versions(), version))
            _check_names(old, names)
        else:
            old = self._earlier(present, names)
        same = [] if target else [name for name in names if not differ(old, present, name)]
        wanted = [name for name in names if name not in same]
        copies = load_copies(tracker, old, wanted)
        if copies.failed:
            name, error = next(iter(copies.failed.items()))
            text = f"{name!r} of version {old.version} could not be made again ({error.message}); nothing was changed"
            raise PreconditionFailed("NOT_RESTORED", text, name=name, cause=error.reason)
        with self._session.rebinding():
            for name, value in copies.values.items():
                tracker.namespace[target or name] = value
        bound = tuple(target or name for name in wanted)
        problem = self._keep_as_version(tracker, bound)
        log.info("restored source=%s version=%s names=%s", old.version, tracker.version, len(bound))
        return Restored(old.version, before, bound, tuple(same), problem)

    def _keep_as_version(self, tracker: StateTracker, bound: Collection[str]) -> str:
        """Commits, and lets go of large values that live on a GPU: why that could not be, empty if it could."""
        try:
            self._commit()
        except LooseLeafError as error:
            # The values are here; the next commit takes them along.
            log.warning("commit_failed %s", error)
            return error.message or error.reason
        limit = self._session.config.small_read_bytes_max
        saved = [name for name in bound if name in tracker.manifest.roots]
        with self._session.rebinding():
            let_go(tracker, [name for name in saved if device_bytes(tracker.manifest, [name]) > limit])
        return ""

    def _earlier(self, present: Manifest, names: Sequence[str]) -> Manifest:
        for entry in self.versions(SEARCHED_VERSIONS_MAX + 1)[1:]:
            found = self._manifest(Version(entry.version))
            if all(name in found.roots for name in names) and any(differ(found, present, name) for name in names):
                return found
        text = f"no kept version before this one has another value of {_names(names)}; nothing was changed"
        raise NotFound("NOT_IN_VERSION", text, names=list(names))

    def _check_target(self, name: str) -> None:
        if not name.isidentifier() or keyword.iskeyword(name) or self._hidden(name):
            raise InvalidArgument("NAME_REFUSED", f"{name!r} cannot be bound to an old value; nothing was changed")

    # -- around a change -------------------------------------------------------------------------------

    def _may_change(self) -> bool:
        return threading.current_thread() is threading.main_thread() and not self._runs_elsewhere()

    def _committed(self) -> StateTracker:
        """The tracker, its state committed as it is now. Raises PreconditionFailed `STATE_IS_ELSEWHERE`."""
        if not self._may_change():
            text = "a cell runs on a GPU worker, which owns the state until it ends; nothing was changed"
            raise PreconditionFailed("STATE_IS_ELSEWHERE", text)
        self._session.connect()
        self._commit()
        assert self._session.tracker is not None
        return self._session.tracker

    def _commit(self) -> None:
        # The running cell may have changed anything before it came here.
        self._session.changed()
        self._session.commit()

    def load_for(self, source: str) -> None:
        """Brings what the rest of the running cell, whose text is `source`, reads at top level into memory.

        What cannot be had says so when it is used.
        """
        tracker = self._session.tracker
        for name in sorted(analyze_cell(source).loads) if tracker is not None else ():
            if tracker is not None and is_stub(tracker.namespace.get(name)):
                try:
                    load_names(self._session, [name])
                except LooseLeafError as error:
                    log.info("not_loaded name=%s %s", name, error)


def _check_names(old: Manifest, names: Sequence[str]) -> None:
    """Raises NotFound `NOT_IN_VERSION` unless `old` has a value of each of `names`."""
    unsaved = {entry.name: entry for entry in old.unsaved}
    for name in names:
        if name in old.roots:
            continue
        why = "it did not exist then"
        if name in unsaved:
            entry = unsaved[name]
            why = f"it could not be saved then ({entry.detail or entry.reason}, at {entry.path})"
        text = f"version {old.version} has no value of {name!r}: {why}. Nothing was changed"
        raise NotFound("NOT_IN_VERSION", text, name=name, version=int(old.version))


def _names(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN_MAX])
    return f"{shown} and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else shown
