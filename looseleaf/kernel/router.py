"""Where a cell runs, decided by the same pure recipe rules that the frontend uses (design §4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looseleaf.ids import CellId, Version
from looseleaf.recipe.log import ExecutionLog
from looseleaf.recipe.name_facts import NameFacts
from looseleaf.recipe.recipe import Recipe, derive_recipe


@dataclass(frozen=True)
class CellRequest:
    """One execute request that may be routed: its text, its cell and its metadata's wishes.

    `priority`: "interactive", or "batch" for notebooks that nobody waits for.
    """

    source: str
    cell_id: CellId
    device_override: str = ""
    priority: str = "interactive"

    @classmethod
    def of(cls, source: str, cell_id: str | None, metadata: Any) -> CellRequest:
        """From what Jupyter sends; a device other than "gpu" or "cpu" in the metadata counts as none."""
        found = metadata.get("looseleaf") if isinstance(metadata, Mapping) else None
        wishes = found if isinstance(found, Mapping) else {}
        device = wishes.get("device")
        priority = "batch" if wishes.get("priority") == "batch" else "interactive"
        return cls(source, CellId(cell_id or ""), device if device in ("gpu", "cpu") else "", priority)


def route(request: CellRequest, log: ExecutionLog, facts: Mapping[str, NameFacts], version: Version) -> Recipe:
    """The cell's recipe; `label` says where it runs. Derives from text and facts only, runs nothing."""
    return derive_recipe(
        request.source, cell_id=request.cell_id, log=log, headers=facts, version=version,
        device_override=request.device_override,
    )
