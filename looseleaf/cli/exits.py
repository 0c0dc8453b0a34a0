"""The exit codes of `looseleaf`; docs/cli.md has this table too."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
ABSENT: Final = 3
UNREACHABLE: Final = 4
REFUSED: Final = 5
LIMIT_MET: Final = 6
FAULT: Final = 7
INTERRUPTED: Final = 130
# As a shell sees a program that SIGPIPE ended.
PIPE_CLOSED: Final = 141

MEANINGS: Final = {
    DONE: "done",
    FAILED: "what was asked for was carried out and failed: a cell, a check",
    USAGE: "wrong usage or setting; nothing was done",
    ABSENT: "what was named does not exist or does not run",
    UNREACHABLE: "a part of the system cannot be reached, does not serve or is too slow",
    REFUSED: "refused as things stand",
    LIMIT_MET: "a limit was met; later it may work",
    FAULT: "a fault of LooseLeaf, or damaged bytes",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "nobody reads the output any more",
}
# By `code` of an error's class.
OF_ERRORS: Final = {
    "INVALID_ARGUMENT": USAGE,
    "NOT_FOUND": ABSENT,
    "UNAVAILABLE": UNREACHABLE,
    "DEADLINE_EXCEEDED": UNREACHABLE,
    "FAILED_PRECONDITION": REFUSED,
    "ABORTED": REFUSED,
    "UNIMPLEMENTED": REFUSED,
    "UNAUTHENTICATED": REFUSED,
    "PERMISSION_DENIED": REFUSED,
    "RESOURCE_EXHAUSTED": LIMIT_MET,
    "DATA_LOSS": FAULT,
    "INTERNAL": FAULT,
}
EPILOG: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found or not running, 4 unreachable or too slow, 5 refused as "
    "things stand, 6 limit met, 7 fault of LooseLeaf, 130 interrupted, 141 output closed."
)


def stdout_is_nowhere() -> bool:
    """Whether stdout is /dev/null."""
    try:
        return os.path.samestat(os.fstat(sys.__stdout__.fileno()), os.stat(os.devnull))  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return False


def stdout_closed(nowhere_before: bool) -> bool:
    """Whether stdout is a pipe that nobody reads any more, or was one: rich points it to nowhere when it finds out.

    `nowhere_before`: it was /dev/null from the start, which no reader can leave.
    """
    try:
        fd = sys.__stdout__.fileno()  # type: ignore[union-attr]
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        closed = any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _fd, events in poll.poll(0))
        return closed or (stdout_is_nowhere() and not nowhere_before)
    except (AttributeError, OSError, ValueError):
        return False


def flush_or_leave() -> None:
    """Writes out what waits for stdout; if that fails nothing is written any more, nor complained of at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        leave_stdout()


def leave_stdout() -> None:
    """Points stdout to nowhere, so that the interpreter's last flush says nothing."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
