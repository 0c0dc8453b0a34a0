"""Where the kernel finds its daemon, and where configuration lies; standard library only.

The user's notebook process imports this module, so it must not pull pydantic into the user's environment;
`looseleaf.config` builds on it for the services.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

CONFIG_NAME = "looseleaf.toml"
CONFIG_BYTES_MAX = 1 << 20

# Environment variables whose values are never saved: shell patterns, in any case.
SECRET_NAMES = (
    "*TOKEN*", "*SECRET*", "*PASSW*", "*API_KEY*", "*APIKEY*", "*CREDENTIAL*", "*PRIVATE_KEY*", "*PRIVATEKEY*",
    "*ACCESS_KEY*", "*ACCESSKEY*", "AUTH", "AUTH_*", "*_AUTH", "*_AUTH_*", "*_PWD",
)  # fmt: skip


class ConfigError(ValueError):
    """A configuration file or variable that cannot be used; the text names it and the cure."""


def config_files(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Existing TOML files, later ones win: the project's (here or in a parent folder), then the user's.

    LOOSELEAF_CONFIG names one file that replaces both; it must exist.
    """
    env = os.environ if environ is None else environ
    if chosen := env.get("LOOSELEAF_CONFIG"):
        if not Path(chosen).is_file():
            raise ConfigError(f"LOOSELEAF_CONFIG names {chosen}, which is not a file: correct the variable or unset it")
        return [Path(chosen)]
    here = Path.cwd()
    project = next((folder / CONFIG_NAME for folder in (here, *here.parents) if (folder / CONFIG_NAME).is_file()), None)
    config_home = env.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    user = Path(config_home) / "looseleaf" / CONFIG_NAME
    return [path for path in (project, user) if path is not None and path.is_file()]


def read_section(section: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The keys of `[section]` of all files of `config_files`, merged; raises ConfigError for bad TOML."""
    merged: dict[str, Any] = {}
    for path in config_files(environ):
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ConfigError(f"{path} is larger than {CONFIG_BYTES_MAX} bytes: not a configuration file")
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        found = table.get(section, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: [{section}] must be a table")
        merged.update(found)
    return merged


def default_data_dir(environ: Mapping[str, str] | None = None) -> Path:
    """LOOSELEAF_DATA, else `data` of [cluster], else ~/.local/share/looseleaf (or XDG_DATA_HOME/looseleaf)."""
    env = os.environ if environ is None else environ
    if chosen := env.get("LOOSELEAF_DATA") or read_section("cluster", env).get("data"):
        return Path(str(chosen)).expanduser().absolute()
    return Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "looseleaf"


def default_run_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where the sockets are: LOOSELEAF_RUN_DIR, DATA/run of a chosen data folder, else the user's.

    A folder is chosen by LOOSELEAF_DATA, `run_dir` or `data` of [cluster]. The user's is
    $XDG_RUNTIME_DIR/looseleaf or ~/.local/state/looseleaf/run.
    """
    env = os.environ if environ is None else environ
    cluster = read_section("cluster", env)
    if chosen := env.get("LOOSELEAF_RUN_DIR"):
        return Path(chosen).expanduser().absolute()
    if data := env.get("LOOSELEAF_DATA"):
        return Path(data).expanduser().absolute() / "run"
    if chosen := cluster.get("run_dir"):
        return Path(str(chosen)).expanduser().absolute()
    if data := cluster.get("data"):
        return Path(str(data)).expanduser().absolute() / "run"
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "looseleaf"
    return Path.home() / ".local" / "state" / "looseleaf" / "run"


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel may be told: LOOSELEAF_KERNEL_<FIELD> over [kernel] of the TOML files over these defaults.

    The endpoint's variable is LOOSELEAF_ENDPOINT, because people set it by hand.
    """

    # Path of a daemon's kernel socket; empty means the first one in `run_dir`.
    endpoint: str = ""
    run_dir: str = ""
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    reconnect_interval_s: float = 1.0
    # How long a cell whose daemon was lost waits for it to come back, to learn what became of the cell.
    recover_timeout_s: float = 10.0
    # Device payloads up to this size are read in the kernel without a GPU (design §3).
    small_read_bytes_max: int = 16 << 20
    # State is also saved when nothing needs it yet: while the kernel is idle, and at its end. Without, only a GPU cell
    # or a preparation saves, as suits a notebook whose session ends with its run.
    commit_idle: bool = True
    # Saves compare all memory byte by byte with a copy that is kept of it: twice the memory, some times as slow.
    # Workers read this, too: from the same TOML files, or from the environment of the cluster.
    paranoid: bool = False
    # A list in TOML, separated by commas in the variable; empty: none is kept out.
    secret_names: tuple[str, ...] = SECRET_NAMES
    log_level: str = "warning"

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> KernelConfig:
        """The configuration of this process; raises ConfigError naming the variable or key that is wrong."""
        env = os.environ if environ is None else environ
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in read_section("kernel", env).items():
            if key not in known:
                raise ConfigError(f"[kernel] has no setting {key!r}; it has {', '.join(known)}")
            values[key] = _convert(f"[kernel] {key}", value, type(known[key].default))
        for name, field in known.items():
            variable = "LOOSELEAF_ENDPOINT" if name == "endpoint" else f"LOOSELEAF_KERNEL_{name.upper()}"
            if variable in env:
                values[name] = _convert(variable, env[variable], type(field.default))
        values["run_dir"] = values.get("run_dir") or str(default_run_dir(env))
        return cls(**values)

    def kernel_socket(self) -> Path:
        """The socket to connect to; it need not exist yet."""
        if self.endpoint:
            return Path(self.endpoint.removeprefix("unix:")).expanduser()
        found = sorted(Path(self.run_dir).glob("kernel-*.sock"))
        return found[0] if found else Path(self.run_dir) / "kernel-h0.sock"


def _convert(where: str, value: Any, kind: type) -> Any:
    try:
        if kind is bool and not isinstance(value, bool):
            return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[str(value).lower()]
        return _texts(value) if kind is tuple else kind(value)
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{where} must be of type {kind.__name__}, not {value!r}") from error


def _texts(value: Any) -> tuple[str, ...]:
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TypeError
    return tuple(text.strip() for text in found if text.strip())
