"""Changes one key of a TOML file and leaves comments, order and layout of the rest alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from tomlkit import dumps, parse, table, value
from tomlkit.exceptions import TOMLKitError

from looseleaf.config_files import SECTIONS, ConfigError, no_such_setting
from looseleaf.config_load import MODELS, load
from looseleaf.kernel_config import KernelConfig


def parse_setting(key: str, text: str) -> tuple[str, str, Any]:
    """Section, name and the value to write for `SECTION.NAME` and the text of a value.

    A text is TOML (`2`, `true`, `["a", "b"]`) where the setting takes that, else the string itself; switches take on
    and off too. Raises ConfigError: no such setting, or a value that it does not take beside the other settings.
    """
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        raise no_such_setting(section, "config set", SECTIONS)
    known: dict[str, Any] = (
        {entry.name: entry for entry in fields(KernelConfig)} if section == "kernel"
        else dict(MODELS[section].model_fields)
    )  # fmt: skip
    if name not in known:
        raise no_such_setting(f"{section}.{name}", "config set", known)
    problem: ConfigError | None = None
    for tried in _readings(text):
        try:
            accepted = _checked(section, name, tried)
        except ConfigError as error:
            problem = error
            continue
        plain = isinstance(accepted, (bool, int, float)) and _takes(known[name], accepted)
        return section, name, accepted if plain else tried
    assert problem is not None
    raise problem


def write_setting(path: Path, section: str, name: str, new: Any) -> None:
    """Sets `name` in `[section]` of the file, which is made with its folder if need be, at once or not at all.

    Raises ConfigError for a file that is no TOML or cannot be written.
    """
    try:
        document = parse(path.read_text(encoding="utf-8")) if path.exists() else parse("")
        if section not in document:
            document[section] = table()
        document[section][name] = new
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path.resolve(), dumps(document))
    except TOMLKitError as error:
        raise ConfigError("CONFIG_INVALID", f"{path} is not valid TOML: {error}", origin=str(path)) from error
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError("CONFIG_INVALID", f"{path} cannot be changed: {error}", origin=str(path)) from error


def _readings(text: str) -> Iterator[Any]:
    """What the text may mean: a value of TOML first, then itself."""
    try:
        yield value(text).unwrap()
    except (TOMLKitError, ValueError):
        pass
    yield text


def _checked(section: str, name: str, tried: Any) -> Any:
    """The value as the section's model takes it."""
    if section != "kernel":
        return getattr(load(MODELS[section], {name: tried}), name)
    text = ",".join(map(str, tried)) if isinstance(tried, list) else str(tried)
    return getattr(KernelConfig.load({**os.environ, KernelConfig.variable(name): text}), name)


def _takes(known: Any, accepted: Any) -> bool:
    """Whether the file's value may be the accepted one: it is of the setting's own kind."""
    kind = known.annotation if isinstance(known, FieldInfo) else type(known.default)
    return kind is not str and not (isinstance(accepted, bool) and kind in (int, float))


def _replace(path: Path, text: str) -> None:
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(made, path.stat().st_mode & 0o777 if path.exists() else 0o600)
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
