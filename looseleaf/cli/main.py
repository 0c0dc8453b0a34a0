"""The program `looseleaf`. Exit codes are those of `looseleaf.cli.exits`."""

from __future__ import annotations

import errno
import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
import typer.main

from looseleaf import __version__
from looseleaf.cli import exits
from looseleaf.error_pages import page_of
from looseleaf.errors import LooseLeafError

# Each has `register(app)`. They import what is heavy inside their commands, so that `looseleaf --help` is quick.
COMMAND_MODULES: Final = (
    "looseleaf.cli.up", "looseleaf.cli.status", "looseleaf.cli.top", "looseleaf.cli.lab", "looseleaf.cli.run",
    "looseleaf.cli.explain", "looseleaf.cli.simulate", "looseleaf.cli.doctor", "looseleaf.cli.pool",
    "looseleaf.cli.session", "looseleaf.cli.state", "looseleaf.cli.outputs", "looseleaf.cli.kernel",
    "looseleaf.cli.config", "looseleaf.cli.store", "looseleaf.cli.rpc", "looseleaf.cli.serve",
)


def build_app() -> typer.Typer:
    """The program with all its commands."""
    app = typer.Typer(
        name="looseleaf", help="Serverless GPUs for computational notebooks.", epilog=exits.EPILOG,
        no_args_is_help=True, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
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


@functools.cache
def build_command() -> Any:
    """The same as click's command, made once."""
    return typer.main.get_command(build_app())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    Errors of ours are one message without a traceback. A reader who goes away, as `head` does, ends it quietly.
    """
    nowhere = exits.stdout_is_nowhere()
    try:
        code = _told(lambda: _run(argv))
        # Short output is written only now, and may find a full disk.
        return _told(lambda: _flushed(code))
    except BrokenPipeError as error:
        if not exits.stdout_closed(nowhere):
            return show_fault(error)
        exits.leave_stdout()
        return exits.PIPE_CLOSED


def _run(argv: Sequence[str] | None) -> int:
    try:
        build_command()(args=list(argv) if argv is not None else None, prog_name="looseleaf")
    except SystemExit as request:
        if isinstance(request.__context__, BrokenPipeError):
            # Typer and rich turn one into an exit of their own.
            raise request.__context__ from None
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    return exits.DONE


def _flushed(code: int) -> int:
    sys.stdout.flush()
    return code


def _told(step: Callable[[], int]) -> int:
    """The step's exit code; its errors are printed and have theirs, but BrokenPipeError is passed on."""
    try:
        return step()
    except LooseLeafError as error:
        return show_error(error)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        exits.flush_or_leave()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return show_fault(error)
        print(f"looseleaf: {error}", file=sys.stderr)
        return exits.LIMIT_MET
    except Exception as error:
        return show_fault(error)


def show_error(error: LooseLeafError) -> int:
    """Prints the error for people and returns its exit code."""
    log_tail = str(error.fields.get("log_tail") or "")
    if log_tail:
        print(f"--- end of {error.fields.get('log', 'the log')}\n{log_tail}\n---", file=sys.stderr)
    print(f"looseleaf: {error}", file=sys.stderr)
    if page := page_of(error.reason):
        print(f"looseleaf: see {page}", file=sys.stderr)
    return exits.OF_ERRORS.get(error.code, exits.FAULT)


def show_fault(error: Exception) -> int:
    """Prints what only we can mend, with its traceback, and returns the exit code."""
    traceback.print_exception(error)
    print("looseleaf: this is a fault of LooseLeaf: please report it with the lines above", file=sys.stderr)
    return exits.FAULT


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"looseleaf {__version__}")
        raise typer.Exit


if __name__ == "__main__":
    sys.exit(main())
