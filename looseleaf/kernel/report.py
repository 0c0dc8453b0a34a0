"""The figures of one cell, as they ride in the reply's metadata and in `looseleaf run`'s report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from looseleaf.recipe.recipe import Recipe

REPORTS_MAX: Final = 64


class PendingReports:
    """Reports of cells whose reply is not sent yet, by the request's id; the newest `REPORTS_MAX`."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Any]] = {}

    def keep(self, request_id: str, report: dict[str, Any]) -> None:
        """Keeps a report until `take`."""
        while len(self._reports) >= REPORTS_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[request_id] = report

    def take(self, request_id: str) -> dict[str, Any] | None:
        """The report of a request, once."""
        return self._reports.pop(request_id, None)


def cell_report(
    recipe: Recipe, *, path: str, run_s: float, version: int, reply: Mapping[str, Any],
    saved: Mapping[str, Any] | None = None, news: Mapping[str, Any] | None = None, used: str = "",
) -> dict[str, Any]:  # fmt: skip
    """One cell's report; figures that do not apply are 0 or None.

    `saved` and `news` are a GPU cell's: its closure is then the one that the frontend derived at Run, and its figures
    are the host's. `path` stands where no host told one. `used`: of a GPU, by a cell that ran on the CPU first.
    """
    saved = saved or {}
    refreshed: Mapping[str, Any] = (news or {}).get("recipe", {}).get("recipe", {})
    figures: Mapping[str, Any] = saved.get("figures", {})
    return {
        "label": "gpu" if used else str(recipe.label),
        "confidence": recipe.confidence,
        "run_again": used or None,
        "reason": recipe.reason,
        "path": str(saved.get("path") or path),
        "closure": list(refreshed.get("names", recipe.names)),
        "live_names": int(refreshed.get("live_names", recipe.live_names)),
        "packages": packages_of(refreshed.get("imports", recipe.imports)),
        "prepare_ms": figures.get("prepare_ms"),
        "start_ms": figures.get("start_ms"),
        "run_s": figures.get("run_s", run_s),
        "save_ms": figures.get("save_ms"),
        "dirty_regions": figures.get("dirty_regions", 0),
        "total_regions": figures.get("total_regions", 0),
        "bytes_moved": figures.get("bytes_moved", 0),
        "gpu_held_s": figures.get("gpu_held_s", 0.0),
        "gpu_pinned_s": figures.get("gpu_pinned_s", 0.0),
        "gpu_resident_s": figures.get("gpu_resident_s", 0.0),
        "unsaved": list(saved.get("unsaved", [])),
        "version": int(saved.get("version", version)),
        "worker": saved.get("pid"),
        "worker_id": saved.get("worker_id"),
        "host": saved.get("host_id"),
        "gpu": saved.get("gpu_index") if saved.get("pid") else None,
        "error": None if reply.get("status") == "ok" else {"ename": reply.get("ename"), "evalue": reply.get("evalue")},
    }


def packages_of(modules: Iterable[str]) -> list[str]:
    """The packages that modules belong to, without ours, which every process of a session has."""
    return sorted({name.partition(".")[0] for name in modules} - {"looseleaf"})
