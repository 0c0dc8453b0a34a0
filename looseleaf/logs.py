"""Structured logs: one JSON event a line on stderr or in a file, readable text on a terminal.

Events are past-tense snake_case (`worker_prepared`). Ids come from the context: `with log_context(session=...)`. Cell
text, values and tokens never enter a log; keys that could carry them are withheld.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import structlog

# The only ids that `log_context` binds.
CONTEXT_KEYS = frozenset({"session", "execution", "cell", "worker", "host", "epoch", "request", "method"})
# Those that go along when one service calls another, so that the lines of one cell can be found in all logs.
CARRIED_KEYS = ("session", "execution", "cell", "worker", "host")
# A longer id is none of ours: a front end names its cells as it likes.
CARRIED_CHARS_MAX = 128
WITHHELD_KEYS = frozenset({"source", "code_text", "value", "token", "stdin", "password", "output", "namespace"})
TEXT_CHARS_MAX = 4_000


def get_logger(**fixed: Any) -> Any:
    """A structlog logger; `fixed` fields ride on each event."""
    return structlog.get_logger(**fixed)


@contextmanager
def log_context(**ids: Any) -> Iterator[None]:
    """Binds ids (keys of CONTEXT_KEYS) to every event of this task and the tasks it starts."""
    unknown = ids.keys() - CONTEXT_KEYS
    if unknown:
        raise ValueError(f"not an id of the log context: {sorted(unknown)}")
    known = {key: value for key, value in ids.items() if value not in ("", None)}
    with structlog.contextvars.bound_contextvars(**known):
        yield


# What every event of this process has beside the context's ids; set once, by `configure_logs`.
_own_ids: dict[str, str] = {}


def own_ids() -> dict[str, str]:
    """Ids that are this process's own, such as a daemon's host: another's never take their place."""
    return dict(_own_ids)


def carried_ids() -> dict[str, str]:
    """The ids that a call of the current task takes along; printable ASCII, of at most CARRIED_CHARS_MAX characters."""
    known = {**structlog.contextvars.get_contextvars(), **_own_ids}
    found = {key: str(known[key]) for key in CARRIED_KEYS if known.get(key)}
    return {
        key: text for key, text in found.items()
        if text.isascii() and text.isprintable() and len(text) <= CARRIED_CHARS_MAX
    }


def configure_logs(service: str, level: str = "info", stream: TextIO | None = None, host: str = "") -> None:
    """Sends structlog's and the standard library's events of this process to `stream` (default stderr).

    `host`: the host that this process is the daemon of, for every event. A line that cannot be written, as on a full
    disk, is lost; whoever logs it never gets an error.
    """
    target = stream or sys.stderr
    _own_ids.clear()
    if host:
        _own_ids["host"] = host
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_own(service),
        withhold,
    ]
    renderer: list[Any]
    if target.isatty():
        renderer = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, structlog.processors.StackInfoRenderer(), *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_names: _LineWriter(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    ))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


class _LineWriter:
    """The end of structlog's chain: one line for each event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        # The disk that the store fills is often that of the logs: its STORE_FULL must still reach the caller.
        with suppress(OSError):
            print(line, file=self._stream, flush=True)

    debug = info = warning = error = critical = msg


def _add_own(service: str) -> Any:
    def add(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in {"service": service, **_own_ids}.items():
            event.setdefault(key, value)
        return event

    return add


def withhold(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replaces what may be a person's text, and shortens long strings."""
    for key, value in event.items():
        if key in WITHHELD_KEYS:
            event[key] = "<withheld>"
        elif isinstance(value, str) and len(value) > TEXT_CHARS_MAX and key != "exception":
            event[key] = value[:TEXT_CHARS_MAX] + "..."
    return event
