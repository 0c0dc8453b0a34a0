"""Where a cell runs, decided by the same pure recipe rules that the frontend uses (design §4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looseleaf.ids import CellId, Version
from looseleaf.recipe.gpu_line import seconds_of
from looseleaf.recipe.log import ExecutionLog
from looseleaf.recipe.name_facts import NameFacts
from looseleaf.recipe.recipe import Recipe, derive_recipe
from looseleaf.recipe.transform import transform


@dataclass(frozen=True)
class CellRequest:
    """One execute request that may be routed: its text, its cell and its metadata's wishes.

    `priority`: "interactive", or "batch" for notebooks that nobody waits for. `keep_s`: how long its GPU process is
    kept afterwards, None if nobody said.
    """

    source: str
    cell_id: CellId
    device_override: str = ""
    priority: str = "interactive"
    keep_s: float | None = None

    @classmethod
    def of(cls, source: str, cell_id: str | None, metadata: Any) -> CellRequest:
        """From what Jupyter sends; another device than "gpu" or "cpu", and a time that is none, count as not said.

        A magic in the text goes before the metadata.
        """
        found = metadata.get("looseleaf") if isinstance(metadata, Mapping) else None
        wishes = found if isinstance(found, Mapping) else {}
        device = wishes.get("device")
        priority = "batch" if wishes.get("priority") == "batch" else "interactive"
        keep_s = transform(source).gpu.keep_s if "--keep" in source else None
        return cls(
            source, CellId(cell_id or ""), device if device in ("gpu", "cpu") else "", priority,
            keep_s if keep_s is not None else seconds_of(wishes.get("keep")),
        )  # fmt: skip


def route(request: CellRequest, log: ExecutionLog, facts: Mapping[str, NameFacts], version: Version) -> Recipe:
    """The cell's recipe; `label` says where it runs. Derives from text and facts only, runs nothing."""
    return derive_recipe(
        request.source, cell_id=request.cell_id, log=log, headers=facts, version=version,
        device_override=request.device_override,
    )
