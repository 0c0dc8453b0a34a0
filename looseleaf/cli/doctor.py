"""`looseleaf doctor`: whether this machine can run LooseLeaf, and what to do if not."""

from __future__ import annotations

from dataclasses import asdict

import typer

from looseleaf.cli import exits
from looseleaf.cli.options import DataOption, JsonOption, example, print_json


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("doctor"))(doctor)


def doctor(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Check the machine and the installation. Exit code 1 if something must be mended."""
    from looseleaf.cli.checks import run_checks
    from looseleaf.local.cluster import cluster_config

    checks = run_checks(cluster_config({"data": data}))
    failed = any(check.state == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        colors = {"ok": "green", "warn": "yellow", "fail": "red"}
        for check in checks:
            console.print(f"[{colors[check.state]}]{check.state:>4}[/]  [bold]{check.name}[/]  ", end="")
            console.print(check.finding, markup=False)
            if check.advice:
                console.print(f"      -> {check.advice}", markup=False)
    if failed:
        raise typer.Exit(exits.FAILED)
