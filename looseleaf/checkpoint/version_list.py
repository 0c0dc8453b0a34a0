"""The kept versions of a session as people meet them: which there are, which one is meant, which are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from looseleaf.errors import NotFound
from looseleaf.ids import Version
from looseleaf.units import format_bytes


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """One kept version without its contents. `parent`: the version that it changed, kept or not, 0 for none."""

    version: int
    parent: int
    created_unix_ms: int
    durable: bool
    logical_bytes: int
    roots: int
    execution_id: str
    lazy_bytes: int = 0

    @property
    def size(self) -> str:
        """What the store has; and what the kernel kept to itself when the version was made."""
        lazy = f", {format_bytes(self.lazy_bytes)} lazy" if self.lazy_bytes else ""
        return format_bytes(self.logical_bytes) + lazy

    @classmethod
    def of(cls, told: Any) -> ListedVersion:
        """From the store's answer, a `VersionInfo`."""
        return cls(
            told.version, told.parent, told.created_unix_ms, told.durable, told.logical_bytes, told.roots,
            told.execution_id, told.lazy_bytes,
        )  # fmt: skip


def find_version(kept: Sequence[ListedVersion], wanted: int) -> Version:
    """The number of the kept version that `wanted` means; -1 is the one before the newest. `kept`: newest first.

    Raises NotFound `VERSION_UNKNOWN` for one that never was, `VERSION_PRUNED` for one that is no longer kept.
    """
    numbers = [entry.version for entry in kept]
    if not numbers:
        raise NotFound("VERSION_UNKNOWN", "this session has no saved version yet; nothing was changed")
    span = f"kept are {len(numbers)} between {numbers[-1]} and {numbers[0]}"
    if wanted < 0:
        if -wanted < len(numbers):
            return Version(numbers[-wanted])
        older = len(numbers) - 1
        what = f"{older} version(s) are kept before it, not {-wanted}" if older else "none is kept before it"
        text = f"version {numbers[0]} is the newest, and {what}; nothing was changed"
        raise NotFound("VERSION_UNKNOWN", text, version=wanted)
    if wanted in numbers:
        return Version(wanted)
    if wanted > numbers[0]:
        text = f"there is no version {wanted} yet; the newest is {numbers[0]}. Nothing was changed"
        raise NotFound("VERSION_UNKNOWN", text, version=wanted)
    text = f"version {wanted} is no longer kept ({span}; a setting says how many); nothing was changed"
    raise NotFound("VERSION_PRUNED", text, version=wanted)


def pruned_ranges(kept: Sequence[ListedVersion], *, whole: bool = True) -> list[tuple[int, int]]:
    """(first, last) of each row of versions that are no longer kept, newest first; below, above and between `kept`.

    `kept`: newest first. `whole`: it goes down to the oldest one; else what lies below its end is not known.
    """
    found = []
    for index, entry in enumerate(kept):
        is_last = index + 1 == len(kept)
        if is_last and not whole:
            break
        below = 0 if is_last else kept[index + 1].version
        if entry.parent > below:
            found.append((below + 1, entry.parent))
    return found
