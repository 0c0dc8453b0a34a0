"""`looseleaf explain`: what each cell of a notebook would need and where it would run, from its text alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from looseleaf.cli.options import JsonOption, complete_notebooks, example, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from looseleaf.recipe import Analysis, ExecutionLog, NameFacts

# Names that a table row shows; `--cell` and `--json` show all.
SHOWN_NAMES_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class ExplainedCell:
    """A code cell, its place among the code cells from 1, and its analysis as if the cells before it had run."""

    index: int
    cell_id: str
    analysis: Analysis


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("explain NOTEBOOK.ipynb --cell 3"))(explain)


def explain(
    notebook: Annotated[Path, typer.Argument(
        help="The notebook to explain; nothing in it is run.", autocompletion=complete_notebooks)],
    cell: Annotated[str, typer.Option("--cell", help="Only this cell: its id or its number.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show each cell's label and why, and the variables and packages it needs.

    Assumes that the cells run once, in document order, on a pool with GPUs. A running session knows more: the real
    values decide there.
    """
    from looseleaf.batch.files import read_notebook

    cells = explain_notebook(read_notebook(notebook), notebook.resolve().parent)
    chosen = [_find(cells, cell)] if cell else cells
    if as_json:
        print_json({"notebook": notebook.name, "order": "document", "cells": [plain_cell(c) for c in chosen]})
    elif cell:
        _show_one(chosen[0])
    else:
        _show_all(cells)


def explain_notebook(
    notebook: Any, folder: Path, state: Callable[[str, ExecutionLog], Mapping[str, NameFacts]] | None = None
) -> list[ExplainedCell]:
    """The code cells of a notebook in document order; modules beside it are files of its own.

    `state(cell id, log)` gives the facts of the live names before a cell; without it the text alone counts.
    """
    from looseleaf.batch.cells import device_wish
    from looseleaf.recipe import CellRun, ExecutionLog, analyze, modules_in

    log, local, found = ExecutionLog(), modules_in(folder), []
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for index, cell in enumerate(code_cells, start=1):
        cell_id = cell.get("id", "")
        analysis = analyze(
            cell.source,
            cell_id=cell_id,
            log=log,
            headers=state(cell_id, log) if state is not None else None,
            version=0,
            device_override=device_wish(cell),
            local_module=local,
        )
        found.append(ExplainedCell(index, cell_id, analysis))
        log.record(CellRun(index, cell_id, cell.source, ok=True))
    return found


def _find(cells: list[ExplainedCell], wanted: str) -> ExplainedCell:
    from looseleaf.errors import NotFound

    for cell in cells:
        if wanted in (cell.cell_id, str(cell.index)):
            return cell
    raise NotFound("CELL_UNKNOWN", f"no code cell has the id or number {wanted!r}; it has {len(cells)} code cells")


def plain_cell(cell: ExplainedCell) -> dict[str, Any]:
    """What `--json` prints of a cell; docs/explain.md says what each key means."""
    from looseleaf.recipe import DeviceLabel, cell_packages

    analysis, facts, recipe = cell.analysis, cell.analysis.facts, cell.analysis.recipe
    deletes = facts.deletes | facts.may_delete
    named = analysis.closure.named
    packages = cell_packages(analysis)
    return {
        "id": cell.cell_id,
        "index": cell.index,
        "needs": sorted(named),
        "needs_types": sorted(analysis.closure.state - named),
        "packages": sorted(packages.named),
        "packages_types": sorted(packages.through_objects),
        "defines": sorted(facts.defines | analysis.closure.writes),
        "imports": sorted(facts.imports),
        "deletes": sorted(deletes),
        "needs_all": recipe.dynamic,
        "gpu": recipe.label is DeviceLabel.GPU,
        "gpu_kind": str(analysis.label.kind),
        "confidence": recipe.confidence,
        "reason": recipe.reason,
        "gpu_count": recipe.gpu_count,
        "files": list(recipe.file_dependencies),
        "parsed": not recipe.partial,
    }


def _show_all(cells: list[ExplainedCell]) -> None:
    rows = []
    for cell in cells:
        recipe = cell.analysis.recipe
        rows.append([
            cell.index,
            cell.cell_id,
            f"{recipe.label.upper()} {recipe.confidence:.2f}",
            recipe.reason,
            _short(cell.analysis.state_names),
            _short(recipe.imports),
            recipe.live_names,
        ])
    columns = ["cell", "id", "runs on", "why", "needs", "packages", "live"]
    print_table("", columns, rows, "The notebook has no code cells.")
    gpu = sum(cell.analysis.recipe.label == "gpu" for cell in cells)
    if cells:
        print(f"{gpu} of {len(cells)} cells would borrow a GPU.")


def _short(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN_NAMES_MAX
    shown = ", ".join(names[:SHOWN_NAMES_MAX])
    return f"{shown} and {more} more" if more > 0 else shown


def _show_one(cell: ExplainedCell) -> None:
    recipe = cell.analysis.recipe
    bound = [name for name in recipe.names if name not in cell.analysis.state_names]
    lines = {
        "cell": f"{cell.index} {cell.cell_id}",
        "runs on": f"{recipe.label.upper()}, confidence {recipe.confidence:.2f}",
        "why": recipe.reason,
        "needs": f"{len(cell.analysis.state_names)} of {recipe.live_names} live: {_list(cell.analysis.state_names)}",
        "imports bound": _list(bound),
        "packages": _list(recipe.imports),
        "own files": _list(recipe.file_dependencies),
        "may change": _list(recipe.defines),
    }
    if recipe.dynamic:
        lines["dynamic"] = f"{cell.analysis.closure.dynamic} may reach any name, so all are needed"
    if recipe.partial:
        lines["partial"] = "the text does not parse; names come from a scan of it"
    for key, text in lines.items():
        print(f"{key:<14}{text}")


def _list(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) or "-"
