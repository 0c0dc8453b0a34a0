"""Where the newest cells ran, why, what of it was wrong and what was learned: `%looseleaf explain` shows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.recipe.lessons import Observation
from looseleaf.recipe.recipe import Recipe
from looseleaf.units import format_bytes

ENTRIES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class LabelEntry:
    """One run. `number`: the cell's execution count. `ran`: "cpu", "gpu", or "cpu, then gpu" if it was run again.

    `note`: what its label turned out to be; empty if it was right or nobody looked.
    """

    number: int
    source: str
    label: str
    confidence: float
    reason: str
    ran: str
    note: str


class LabelLog:
    """The newest ENTRIES_MAX runs, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[LabelEntry] = deque(maxlen=ENTRIES_MAX)

    def add(self, number: int, source: str, recipe: Recipe, ran: str, seen: Observation | None, used: str = "") -> None:
        """One run ended. `recipe`: as it was before the run; `used`: what it used of a GPU while it ran without one."""
        note = note_of(recipe, ran, seen, used)
        label = str(recipe.label)
        self._entries.append(LabelEntry(number, source, label, recipe.confidence, recipe.reason, ran, note))

    def newest(self, limit: int) -> list[LabelEntry]:
        """At most `limit` entries, the newest last."""
        return list(self._entries)[-limit:]


def note_of(recipe: Recipe, ran: str, seen: Observation | None, used: str = "") -> str:
    """What a run has taught of its cell's label, in words."""
    if used:
        what = "run again on a GPU" if ran == "cpu, then gpu" else "not run again"
        return f"used the GPU ({used}), {what}; {_learned(seen)}"
    if seen is None:
        return ""
    if recipe.label == "gpu" and not seen.touched_gpu:
        return "did not use the GPU; learned"
    if recipe.label == "cpu" and seen.touched_gpu:
        return f"used the GPU; {_learned(seen)}"
    return ""


def _learned(seen: Observation | None) -> str:
    if seen is None:
        return "not learned"
    return "learned: gpu" + (f", at most {format_bytes(seen.peak_bytes)} there" if seen.peak_bytes else "")


def observed_here(recipe: Recipe, used: str, run_s: float, *, ok: bool) -> Observation | None:
    """What a run in the kernel has shown; None if it teaches nothing: a person decided, or it failed too early."""
    if not recipe.guess or recipe.confidence >= 1.0 or not (used or ok):
        return None
    return Observation(recipe.guess, bool(used), duration_s=run_s)


def observed_there(recipe: Recipe, saved: Mapping[str, Any] | None, *, ok: bool) -> Observation | None:
    """The same for a run on a worker that ended with `saved`."""
    figures: Mapping[str, Any] = (saved or {}).get("figures") or {}
    touched = figures.get("gpu_pinned_s", 0.0) > 0
    if not figures or not recipe.guess or recipe.confidence >= 1.0 or not (touched or ok):
        return None
    peak_bytes = int((saved or {}).get("peak_device_bytes", 0))
    return Observation(recipe.guess, touched, peak_bytes, float(figures.get("run_s", 0.0)))
