"""Variables that no version has: what a worker tells of them and what a person is told (design §3)."""

from __future__ import annotations

import io
import types
from collections.abc import Iterable, Mapping
from typing import Any

from looseleaf.checkpoint.manifest import Unsaved
from looseleaf.checkpoint.stub import is_stub


def unsaved_rows(
    unsaved: Iterable[Unsaved], here: Mapping[str, Unsaved], namespace: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """As a save's reply has them: {name, reason, path, here, alive}.

    `here`: those whose value lives in this process. `alive` is False for what nobody can use further, such as a closed
    file: no worker need be kept for it.
    """
    return [
        {
            "name": entry.name, "reason": entry.reason, "path": entry.path,
            "here": entry.name in here, "alive": entry.name in here and not _is_over(namespace.get(entry.name)),
        }
        for entry in unsaved
    ]  # fmt: skip


def _is_over(value: Any) -> bool:
    if isinstance(value, types.GeneratorType):
        return value.gi_frame is None
    if isinstance(value, types.CoroutineType):
        return value.cr_frame is None
    # By the base classes' own: a subclass may be the person's.
    if isinstance(value, (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)):
        return type(value).__module__ in ("_io", "io") and value.closed
    return False


def not_live(names: Iterable[str], namespace: Mapping[str, Any]) -> list[str]:
    """Those of `names` whose value does not live in this process."""
    return [name for name in names if is_stub(namespace.get(name)) or name not in namespace]


def stale_note(stale: Iterable[tuple[str, str]]) -> str:
    """What a person is told of values that no version has and that hold an older state of others; empty if none do."""
    lines = []
    for name, path in stale:
        part = f" (at {path})" if path != name else ""
        lines.append(
            f"LooseLeaf: {name!r} cannot be saved and still holds what another variable was before a cell that ran "
            f"elsewhere changed it{part}. Make {name!r} again to have it follow.\n"
        )
    return "".join(lines)
