"""`looseleaf top`: the whole cluster on one screen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.cli.options import DataOption, JsonOption, print_json, print_table, resolve_address, wait

if TYPE_CHECKING:
    from looseleaf.top.snapshot import ClusterEye


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog="Example: looseleaf top --once")(top)


def top(
    data: DataOption = None,
    as_json: JsonOption = False,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end; --json does so too.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch GPUs, queue, sessions, zygotes, store and last runs. With --once, exit code 4 if no scheduler answers."""
    scheduler, store = resolve_address("scheduler", data), resolve_address("checkpoint-store", data)
    if not (once or as_json):
        _refuse_without_textual()
        asyncio.run(_watch(scheduler, store, interval_s))
        return
    snapshot = wait(_look_once(scheduler, store))
    if as_json:
        print_json(snapshot)
    else:
        _print(snapshot)
    if snapshot["pool"] is None:
        raise typer.Exit(4)


def _refuse_without_textual() -> None:
    """Raises Unsupported `TEXTUAL_MISSING`."""
    from looseleaf.errors import Unsupported

    try:
        import textual  # noqa: F401
    except ImportError as error:
        text = "the full-screen view needs textual: pip install 'looseleaf[top]'; `looseleaf top --once` needs it not"
        raise Unsupported("TEXTUAL_MISSING", text) from error


async def _watch(scheduler: str, store: str, interval_s: float) -> None:
    from looseleaf.top.app import TopApp

    eye = _eye(scheduler, store)
    try:
        await TopApp(eye.look, interval_s).run_async()
    finally:
        await eye.close()


async def _look_once(scheduler: str, store: str) -> dict[str, Any]:
    eye = _eye(scheduler, store)
    try:
        return await eye.look()
    finally:
        await eye.close()


def _eye(scheduler: str, store: str) -> ClusterEye:
    from looseleaf.top.snapshot import ClusterEye

    return ClusterEye(scheduler, store)


def _print(snapshot: dict[str, Any]) -> None:
    from looseleaf.top.model import pool_line, store_line
    from looseleaf.top.panels import PANELS

    print(pool_line(snapshot), store_line(snapshot), *snapshot["problems"], sep="\n")
    for panel in PANELS:
        print()
        rows = [list(row) for row in panel.rows(snapshot)]
        print_table(panel.title, list(panel.columns), rows, panel.empty)
