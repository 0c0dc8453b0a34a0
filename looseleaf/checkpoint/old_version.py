"""Variables of an older version beside the present ones: copies that share nothing with the present but code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from looseleaf.checkpoint import import_filters
from looseleaf.checkpoint.history import content_of
from looseleaf.checkpoint.loader import Loader
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.memory import raw_access
from looseleaf.checkpoint.restorer import Restorer, stub_for
from looseleaf.errors import LooseLeafError
from looseleaf.ids import UnitId

if TYPE_CHECKING:
    from looseleaf.checkpoint.tracker import StateTracker


@dataclass(frozen=True, slots=True)
class Copies:
    """`values` of the variables that could be made; `failed`: why the others could not."""

    values: Mapping[str, Any]
    failed: Mapping[str, LooseLeafError]


def load_copies(tracker: StateTracker, old: Manifest, names: Collection[str]) -> Copies:
    """The values that `old`, a version of the tracked session, has of `names`; binds nothing.

    What the names share in `old` their copies share. With present variables they share no data, so that changing one
    leaves the other alone; but a class is the class that the session has now, if it still has it, or `isinstance`
    would not hold, and a function that has not changed since is the same one. A class or function that is itself asked
    for comes as it was. Memory is mapped, not copied, until it is written.

    `names` are roots of `old`. Raises what the StateIO raises.
    """
    asked = {old.roots[name] for name in names}
    reached = sorted(old.reachable_units(asked))
    shared = [unit_id for unit_id in reached if _is_present_code(tracker.manifest, old, unit_id, asked)]
    with raw_access(), import_filters.noted():
        restorer = Restorer(tracker)
        present = restorer.new_loader()
        present.load(shared)
        restorer.adopt(present)
        kept = {int(unit_id): present.value_of(unit_id) for unit_id in shared if unit_id not in present.failed}
        loader = Loader(old, tracker.io, tracker.namespace, kept.get)
        loader.load([old.roots[name] for name in names])
    values = {name: loader.value_of(old.roots[name]) for name in names if old.roots[name] not in loader.failed}
    return Copies(values, {name: loader.failed[old.roots[name]] for name in names if name not in values})


def let_go(tracker: StateTracker, names: Collection[str]) -> None:
    """Puts stubs in the place of variables whose values the tracked version holds."""
    for name in names:
        if (stub := stub_for(tracker.manifest, name)) is not None:
            tracker.labels.atoms.pop(name, None)
            tracker.saved_bindings.pop(name, None)
            tracker.namespace[name] = stub


def _is_present_code(present: Manifest, old: Manifest, unit_id: UnitId, asked: Collection[UnitId]) -> bool:
    if unit_id not in present.units:
        return False
    kinds = {old.units[unit_id].header.kind, present.units[unit_id].header.kind}
    if kinds == {"class"} and unit_id not in asked:
        return True
    return kinds in ({"class"}, {"function"}) and content_of(old, unit_id) == content_of(present, unit_id)
