"""Before a cell runs: what it needs is brought into memory, or it is refused while nothing has happened (design §3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.stub import is_stub, unit_id_of
from looseleaf.errors import PreconditionFailed
from looseleaf.kernel.needs import (
    WorkerNeed,
    needed_on_worker,
    needed_worker,
    refuse_device_reads,
    refuse_unsaved,
    stubs_to_load,
    surely_needed,
)
from looseleaf.kernel.session import KernelSession
from looseleaf.recipe.recipe import Recipe


def has_moved(session: KernelSession, names: Iterable[str]) -> bool:
    """Whether one of `names` holds a stand-in that the last version knows by another name or not at all.

    IPython binds results anew without looking at them. After a commit every name is known by what it holds.
    """
    tracker, manifest = session.tracker, session.manifest
    if tracker is None or manifest is None:
        return False
    stubs = ((name, tracker.namespace.get(name)) for name in names)
    return any(is_stub(v) and unit_id_of(v) not in (None, manifest.roots.get(name)) for name, v in stubs)


def ready_for_cpu(session: KernelSession, recipe: Recipe, source: str) -> None:
    """Brings the stubs that a CPU cell with the text `source` reads into memory.

    Raises PreconditionFailed `CUDA_IN_CPU_CELL` if one holds more GPU memory than the kernel may read,
    `UNSAVED_VARIABLE` if one was never saved, `NOT_RESTORED`, or the store's error.
    """
    tracker, manifest = session.tracker, session.manifest
    if tracker is None or manifest is None:
        return
    stubs = set(tracker.stub_names())
    needed = stubs.intersection(surely_needed(recipe, source))
    refuse_unsaved(manifest, needed, session.holders, session.epoch)
    wanted = stubs_to_load(recipe, stubs, manifest, session.config.small_read_bytes_max)
    of_patches = stubs.intersection(manifest.names_of_process(with_devices=False))
    _load(session, sorted(of_patches.union(wanted)), manifest, needed)


def load_names(session: KernelSession, names: Collection[str]) -> None:
    """Brings those of `names` that are not here into memory. Raises as `ready_for_cpu`."""
    tracker, manifest = session.tracker, session.manifest
    if tracker is None or manifest is None:
        return
    refuse_unsaved(manifest, names, session.holders, session.epoch)
    stubs = set(tracker.stub_names())
    wanted = [name for name in names if name in stubs and name in manifest.roots]
    _load(session, wanted, manifest, wanted)


def _load(session: KernelSession, names: list[str], manifest: Manifest, needed: Collection[str]) -> None:
    if not names:
        return
    refuse_device_reads(manifest, names, session.config.small_read_bytes_max)
    session.connect()
    # The connection may be a new one, and the tracker with it.
    tracker = session.tracker
    assert tracker is not None
    with session.rebinding():
        report = tracker.materialise(names)
    if failed := [entry for entry in report.failed if entry.name in needed]:
        worst = failed[0]
        text = f"{worst.name!r} could not be loaded ({worst.detail or worst.reason}); nothing was run"
        raise PreconditionFailed("NOT_RESTORED", text, name=worst.name, cause=worst.reason)


def ready_for_gpu(session: KernelSession, recipe: Recipe, source: str) -> WorkerNeed:
    """Where a GPU cell must run. Refuses one that needs what could not be saved and lives in no worker.

    Raises PreconditionFailed `UNSAVED_VARIABLE`.
    """
    tracker, manifest = session.tracker, session.manifest
    if manifest is None or tracker is None:
        return WorkerNeed()
    names = needed_on_worker(recipe, source)
    return needed_worker(manifest, names, tracker.unsaved_here, session.holders, session.epoch)
