"""The program `looseleaf`.

Exit codes: 0 done; 1 a fault of ours; 2 wrong usage or setting; 3 what was named does not exist or does not run;
4 a part of the system cannot be reached or is too slow; 5 refused as things stand; 6 a limit was met; 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

import typer

from looseleaf import __version__
from looseleaf.errors import LooseLeafError

# Each has `register(app)`. They import what is heavy inside their commands, so that `looseleaf --help` is quick.
COMMAND_MODULES: Final = (
    "looseleaf.cli.up", "looseleaf.cli.status", "looseleaf.cli.doctor", "looseleaf.cli.pool", "looseleaf.cli.session",
    "looseleaf.cli.state", "looseleaf.cli.store", "looseleaf.cli.rpc", "looseleaf.cli.run", "looseleaf.cli.kernel",
    "looseleaf.cli.explain", "looseleaf.cli.top",
)

EXIT_FAULT: Final = 1
EXIT_USAGE: Final = 2
EXIT_CODES: Final = {
    "INVALID_ARGUMENT": EXIT_USAGE, "NOT_FOUND": 3, "UNAVAILABLE": 4, "DEADLINE_EXCEEDED": 4, "FAILED_PRECONDITION": 5,
    "ABORTED": 5, "UNIMPLEMENTED": 5, "UNAUTHENTICATED": 5, "PERMISSION_DENIED": 5, "RESOURCE_EXHAUSTED": 6,
}
_EPILOG = (
    "Exit codes: 0 done, 1 fault of LooseLeaf, 2 wrong usage, 3 not found or not running, 4 unreachable or too slow, "
    "5 refused as things stand, 6 limit met."
)


def build_app() -> typer.Typer:
    """The program with all its commands."""
    app = typer.Typer(
        name="looseleaf", help="Serverless GPUs for computational notebooks.", epilog=_EPILOG, no_args_is_help=True,
        pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    ) -> None:
        """Serverless GPUs for computational notebooks: a GPU for the length of one cell."""

    for name in COMMAND_MODULES:
        importlib.import_module(name).register(app)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors of ours are one message, never a traceback."""
    app = build_app()
    try:
        app(args=list(argv) if argv is not None else None, prog_name="looseleaf")
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else int(exit_request.code is not None)
    except LooseLeafError as error:
        return show_error(error)
    except KeyboardInterrupt:
        return 130
    return 0


def show_error(error: LooseLeafError) -> int:
    """Prints the error for people and returns its exit code."""
    log_tail = str(error.fields.get("log_tail") or "")
    if log_tail:
        print(f"--- end of {error.fields.get('log', 'the log')}\n{log_tail}\n---", file=sys.stderr)
    print(f"looseleaf: {error}", file=sys.stderr)
    return EXIT_CODES.get(error.code, EXIT_FAULT)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"looseleaf {__version__}")
        raise typer.Exit


if __name__ == "__main__":
    sys.exit(main())
