"""Settings of the interpreter and of the standard library that hold for a whole process: plain values, by name."""

from __future__ import annotations

import csv
import gc
import locale
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple


class _Setting(NamedTuple):
    read: Callable[[], Any]
    apply: Callable[[Any], Any]


def _read_umask() -> int:
    # os.umask tells only while it sets, and other threads make files meanwhile.
    found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 8) if found else 0o022


def _read_locale() -> dict[str, str]:
    return {name: locale.setlocale(getattr(locale, name)) for name in _LOCALE}


def _apply_locale(wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if locale.setlocale(getattr(locale, name)) != value:
            locale.setlocale(getattr(locale, name), value)


_LOCALE: Final = ("LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_NUMERIC", "LC_MESSAGES")


def _apply_zone(_: Any) -> None:
    time.tzset()  # by TZ, which is set before


def _read_dialects() -> dict[str, dict[str, Any]]:
    dialects = {name: csv.get_dialect(name) for name in csv.list_dialects() if name not in _OWN_DIALECTS}
    return {name: {part: getattr(dialect, part) for part in _DIALECT} for name, dialect in dialects.items()}


def _apply_dialects(wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for name in set(csv.list_dialects()) - set(_OWN_DIALECTS) - wanted.keys():
        csv.unregister_dialect(name)
    for name, parts in wanted.items():
        csv.register_dialect(name, **parts)


_OWN_DIALECTS: Final = ("excel", "excel-tab", "unix")
_DIALECT: Final = (
    "delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict",
)  # fmt: skip

_SETTINGS: Final[Mapping[str, _Setting]] = {
    "umask": _Setting(_read_umask, os.umask),
    "locale": _Setting(_read_locale, _apply_locale),
    "time_zone": _Setting(lambda: [*time.tzname, time.timezone], _apply_zone),
    "switch_interval": _Setting(sys.getswitchinterval, sys.setswitchinterval),
    "int_max_str_digits": _Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "socket_timeout": _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "gc_enabled": _Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "gc_threshold": _Setting(lambda: list(gc.get_threshold()), lambda wanted: gc.set_threshold(*wanted)),
    "csv_dialects": _Setting(_read_dialects, _apply_dialects),
    "csv_field_size_limit": _Setting(csv.field_size_limit, csv.field_size_limit),
}


def read(_: Mapping[str, Any]) -> dict[str, Any]:
    """The settings now."""
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def apply(values: Mapping[str, Any]) -> None:
    """Sets those that differ here. Raises what the first one raises that cannot be followed, after all others."""
    failed: Exception | None = None
    for name, setting in _SETTINGS.items():
        if name in values and setting.read() != values[name]:
            try:
                setting.apply(values[name])
            except Exception as error:
                failed = failed or error
    if failed is not None:
        raise failed
