"""The TOML files of the configuration, and on which line of which file a key stands; standard library only.

Kernels and workers read them too, so this must not pull a package into the user's environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import InvalidArgument

CONFIG_NAME: Final = "looseleaf.toml"
CONFIG_BYTES_MAX: Final = 1 << 20
# The tables of a file; each has a model of that name (`looseleaf.config_load`), `kernel` has KernelConfig.
SECTIONS: Final = ("cluster", "store", "scheduler", "frontend", "daemon", "kernel")

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*(["']?)([\w-]+)\1\s*(?:\.\s*(["']?)([\w-]+)\3\s*)?=""")


class ConfigError(InvalidArgument):
    """A configuration file, variable or flag that cannot be used.

    The text names the setting, its value, where it stands and what is allowed. Fields, where they apply: `key`
    ("scheduler.lease_ttl_ms"), `value`, `origin` (a file with its line, a variable, a flag), `allowed`.
    """


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value out of a file, and "path:line" of its key."""

    value: Any
    origin: str


def user_config_file(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own file, whether it exists or not: where platformdirs, too, puts a user's configuration on Linux."""
    env = os.environ if environ is None else environ
    home = env.get("XDG_CONFIG_HOME", "").strip() or str(Path.home() / ".config")
    return Path(home) / "looseleaf" / CONFIG_NAME


def project_config_file() -> Path | None:
    """The project's file: here or in the nearest parent folder that has one."""
    here = Path.cwd()
    return next((folder / CONFIG_NAME for folder in (here, *here.parents) if (folder / CONFIG_NAME).is_file()), None)


def config_files(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Existing TOML files, later ones win: the user's, then the project's.

    LOOSELEAF_CONFIG names one file that replaces both; it must exist.
    """
    env = os.environ if environ is None else environ
    if chosen := env.get("LOOSELEAF_CONFIG"):
        if not Path(chosen).is_file():
            text = f"LOOSELEAF_CONFIG names {chosen}, which is not a file: correct the variable or unset it"
            raise ConfigError("CONFIG_INVALID", text, key="LOOSELEAF_CONFIG", value=chosen)
        return [Path(chosen)]
    user, project = user_config_file(env), project_config_file()
    files = [user] if user.is_file() else []
    if project is not None and not (files and project.samefile(user)):
        files.append(project)
    return files


def read_values(section: str, environ: Mapping[str, str] | None = None) -> dict[str, FileValue]:
    """The keys of `[section]` of all files, merged. Raises ConfigError for a file that is none of ours."""
    merged: dict[str, FileValue] = {}
    for path in config_files(environ):
        text = _read(path)
        for key, value in _table(path, text).get(section, {}).items():
            merged[key] = FileValue(value, f"{path}:{line_of(text, section, key)}")
    return merged


def read_section(section: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """As `read_values`, without where they stand."""
    return {key: found.value for key, found in read_values(section, environ).items()}


def line_of(text: str, section: str, key: str = "") -> int:
    """The line of `key` in `[section]`, or of the section's header; 0 if it stands in no line of its own."""
    current, header = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _HEADER.match(line):
            current = found[1]
            header = number if current == section else header
        elif found := _KEY.match(line):
            words = [current] * bool(current) + [word for word in (found[2], found[4]) if word]
            if key and words[:2] == [section, key]:
                return number
            if not header and words[0] == section:
                header = number
    return header


def no_such_setting(name: str, origin: str, known: Iterable[str]) -> ConfigError:
    """The error of a key ("scheduler.x") or section that there is not: with the nearest that there are."""
    section, _, key = name.rpartition(".")
    choices = sorted(known)
    near = [f"{section}.{choice}" if section else choice for choice in get_close_matches(key, choices, n=2)]
    cure = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(choices)}"
    text = f"{name} ({origin}): there is no such setting; {cure}"
    return ConfigError("CONFIG_INVALID", text, key=name, origin=origin, allowed=choices)


def wrong_value(name: str, value: Any, origin: str, allowed: str) -> ConfigError:
    """The error of a value that its setting does not take."""
    shown = repr(value) if len(repr(value)) <= 100 else f"{repr(value)[:99]}…"
    text = f"{name} = {shown} ({origin}): {allowed}"
    return ConfigError("CONFIG_INVALID", text, key=name, value=shown, origin=origin, allowed=allowed)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            text = f"{path} is larger than {CONFIG_BYTES_MAX} bytes: not a configuration file"
            raise ConfigError("CONFIG_INVALID", text, origin=str(path))
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("CONFIG_INVALID", f"{path} cannot be read: {error}", origin=str(path)) from error


def _table(path: Path, text: str) -> dict[str, dict[str, Any]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("CONFIG_INVALID", f"{path} is not valid TOML: {error}", origin=str(path)) from error
    for section, found in table.items():
        origin = f"{path}:{line_of(text, section)}"
        if section not in SECTIONS:
            raise no_such_setting(section, origin, SECTIONS)
        if not isinstance(found, dict):
            raise wrong_value(section, found, origin, f"must be a table: [{section}]")
    return table
