"""What a cell needs of values that are not in the kernel, and when that must be refused before it runs (design §3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from looseleaf.checkpoint.manifest import Manifest
from looseleaf.errors import PreconditionFailed
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


def surely_needed(recipe: Recipe, source: str) -> list[str]:
    """The recipe's names without which the cell cannot run.

    Of a cell that may reach any name, as `%whos` does, those that its text reads: any other tells its name when it is
    used after all.
    """
    return list(recipe.names if not recipe.dynamic else analyze_cell(source).read_names.intersection(recipe.names))


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


def refuse_unsaved(manifest: Manifest, names: Iterable[str]) -> None:
    """Raises PreconditionFailed `UNSAVED_VARIABLE` if the value of one of `names` stayed in a worker."""
    wanted = set(names)
    for entry in manifest.unsaved:
        if entry.name in wanted:
            part = f" (at {entry.path})" if entry.path != entry.name else ""
            raise PreconditionFailed(
                "UNSAVED_VARIABLE",
                f"this cell needs {entry.name!r}, which could not be moved{part}: {entry.detail or entry.reason}; "
                f"make {entry.name!r} in the same cell that uses it; nothing was run",
                name=entry.name, path=entry.path, cause=entry.reason,
            )  # fmt: skip
