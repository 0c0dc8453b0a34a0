"""`looseleaf serve`: one service in the foreground, as its own program starts it."""

from __future__ import annotations

import importlib
from typing import Annotated, Final

import typer

from looseleaf.cli.options import example

# Name on the command line -> its module; the flags after it are those of `looseleaf-<service> --help`.
SERVICES: Final = {
    "store": "looseleaf.services.checkpoint_store.server",
    "scheduler": "looseleaf.services.scheduler.server",
    "frontend": "looseleaf.services.frontend.server",
    "daemon": "looseleaf.services.worker_daemon.server",
}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    everything = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
    app.command(context_settings=everything, epilog=example("serve scheduler --listen 127.0.0.1:7402"))(serve)


def serve(
    context: typer.Context,
    service: Annotated[str, typer.Argument(
        help="store, scheduler, frontend or daemon.",
        autocompletion=lambda incomplete: [name for name in SERVICES if name.startswith(incomplete)])],
) -> None:
    """Run one service in the foreground. `looseleaf serve SERVICE --help` shows its settings.

    Its exit codes: 0 stopped as told, 1 fault, 2 wrong setting, 3 could not start.
    """
    from looseleaf.errors import InvalidArgument

    if service not in SERVICES:
        raise InvalidArgument("SERVICE_UNKNOWN", f"no service {service!r}; there are {', '.join(SERVICES)}")
    raise typer.Exit(importlib.import_module(SERVICES[service]).main(context.args))
