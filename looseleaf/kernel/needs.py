"""What a cell needs of values that are not in the kernel, and when that must be refused before it runs (design §3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from looseleaf.checkpoint.manifest import Manifest, Unsaved
from looseleaf.errors import PreconditionFailed
from looseleaf.ids import Epoch
from looseleaf.kernel.holders import Holder, Holders
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.recipe import Recipe


def stubs_to_load(recipe: Recipe, stubs: Collection[str], manifest: Manifest, small_read_bytes_max: int) -> list[str]:
    """The recipe's names whose values must be loaded before a CPU cell runs.

    A cell that may reach any name gets all that the kernel may hold: what lives on a GPU stays a stub, which tells its
    name when it is used after all.
    """
    names = [name for name in recipe.names if name in stubs and name in manifest.roots]
    if not recipe.dynamic:
        return names
    return [name for name in names if device_bytes(manifest, [name]) <= small_read_bytes_max]


def names_to_commit(recipe: Recipe) -> Collection[str] | None:
    """The variables whose bytes must be in the store before the cell runs on a worker; None: all of them."""
    return None if recipe.dynamic else recipe.names


def surely_needed(recipe: Recipe, source: str) -> list[str]:
    """The recipe's names without which the cell cannot run.

    Of a cell that may reach any name, as `%whos` does, those that its text reads: any other tells its name when it is
    used after all.
    """
    return list(recipe.names if not recipe.dynamic else analyze_cell(source).read_names.intersection(recipe.names))


def needed_on_worker(recipe: Recipe, source: str) -> list[str]:
    """As `surely_needed`, without those that the cell only deletes: their stand-ins can be deleted anywhere."""
    facts = analyze_cell(source)
    only_deleted = (facts.deletes | facts.may_delete) - facts.read_names
    return [name for name in surely_needed(recipe, source) if name not in only_deleted]


def device_bytes(manifest: Manifest, names: Iterable[str]) -> int:
    """Payload bytes on GPUs that the names' values reach."""
    closure = manifest.closure(names, follow_globals=False)
    entries = (manifest.payloads[payload_id] for payload_id in closure.payloads)
    return sum(entry.size_bytes for entry in entries if entry.device != "cpu")


def refuse_device_reads(manifest: Manifest, names: list[str], small_read_bytes_max: int) -> None:
    """Raises PreconditionFailed `CUDA_IN_CPU_CELL` if the values hold more GPU memory than the kernel may read."""
    if device_bytes(manifest, names) <= small_read_bytes_max:
        return
    largest = [name for name in names if device_bytes(manifest, [name])]
    raise PreconditionFailed(
        "CUDA_IN_CPU_CELL",
        f"this cell runs on the CPU but reads {', '.join(sorted(largest))}, which live on a GPU; put %%gpu on the "
        "cell's first line and run it again; nothing was run, no variable was changed",
        names=sorted(largest),
    )


@dataclass(frozen=True)
class WorkerNeed:
    """The worker in which variables live that a cell needs and no version has; empty: any worker will do."""

    worker_id: str = ""
    names: tuple[str, ...] = ()


def refuse_unsaved(manifest: Manifest, names: Collection[str], holders: Holders, epoch: Epoch) -> None:
    """Raises PreconditionFailed `UNSAVED_VARIABLE` if the value of one of `names` stayed in a worker.

    The text says where it lives if a GPU cell can use it there.
    """
    for entry in _unsaved(manifest, names):
        holder = holders.of(entry, epoch)
        if holder is None:
            raise _refusal(entry, _gone(entry, holders, epoch))
        raise _refusal(entry, f"{holders.where(entry, epoch)}: put %%gpu on the cell's first line to run it there")


def needed_worker(
    manifest: Manifest, names: Collection[str], here: Collection[str], holders: Holders, epoch: Epoch
) -> WorkerNeed:
    """Where a GPU cell that needs `names` must run; `here`: variables that live in this kernel and in no version.

    Raises PreconditionFailed `UNSAVED_VARIABLE` if it can run nowhere: one lives in the kernel or nowhere any more, or
    two live in different workers.
    """
    found = [(entry, holders.of(entry, epoch)) for entry in _unsaved(manifest, names)]
    places = {holder.worker_id if holder is not None else "" for _entry, holder in found}
    if len(found) > 1 and (len(places) > 1 or any(entry.name in here for entry, _ in found)):
        raise _scattered(found, here)
    for entry, holder in found:
        if entry.name in here:
            text = "it lives in the notebook's kernel, where CPU cells can use it"
            raise _refusal(entry, f"{text}; {_make_again(entry)}")
        if holder is None:
            raise _refusal(entry, _gone(entry, holders, epoch))
    return WorkerNeed(places.pop(), tuple(entry.name for entry, _ in found)) if found else WorkerNeed()


def _unsaved(manifest: Manifest, names: Collection[str]) -> list[Unsaved]:
    wanted = set(names)
    return [entry for entry in manifest.unsaved if entry.name in wanted]


def _gone(entry: Unsaved, holders: Holders, epoch: Epoch) -> str:
    why = holders.why_gone(entry, epoch)
    return f"{why}; {_make_again(entry)}" if why else _make_again(entry)


def _make_again(entry: Unsaved) -> str:
    return f"make {entry.name!r} in the same cell that uses it"


def _refusal(entry: Unsaved, then: str) -> PreconditionFailed:
    part = f" (at {entry.path})" if entry.path != entry.name else ""
    return PreconditionFailed(
        "UNSAVED_VARIABLE",
        f"this cell needs {entry.name!r}, which could not be moved{part}: {entry.detail or entry.reason}; {then}; "
        "nothing was run",
        name=entry.name, path=entry.path, cause=entry.reason,
    )  # fmt: skip


def _scattered(found: list[tuple[Unsaved, Holder | None]], here: Collection[str]) -> PreconditionFailed:
    def place(entry: Unsaved, holder: Holder | None) -> str:
        if entry.name in here:
            return "in the notebook's kernel"
        return f"in the GPU process {holder.pid}" if holder is not None else "nowhere any more"

    listed = ", ".join(f"{entry.name!r} lives {place(entry, holder)}" for entry, holder in found)
    names = [entry.name for entry, _ in found]
    return PreconditionFailed(
        "UNSAVED_VARIABLE",
        f"this cell needs variables that could not be moved and are not in one process: {listed}; make them in the "
        "cell that uses them, or use each in a cell of its own; nothing was run",
        name=names[0], names=names, path=found[0][0].path, cause=found[0][0].reason,
    )  # fmt: skip
