"""Where the kernel finds its daemon, and where configuration lies; standard library only.

The user's notebook process imports this module, so it must not pull pydantic into the user's environment;
`looseleaf.config` builds on it for the services.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from looseleaf.config_files import ConfigError, no_such_setting, read_section, read_values, wrong_value

__all__ = ["PRIVATE_TAGS", "SECRET_NAMES", "ConfigError", "KernelConfig", "default_data_dir", "default_run_dir"]

# Environment variables whose values are never saved: shell patterns, in any case.
SECRET_NAMES = (
    "*TOKEN*", "*SECRET*", "*PASSW*", "*API_KEY*", "*APIKEY*", "*CREDENTIAL*", "*PRIVATE_KEY*", "*PRIVATEKEY*",
    "*ACCESS_KEY*", "*ACCESSKEY*", "AUTH", "AUTH_*", "*_AUTH", "*_AUTH_*", "*_PWD",
)  # fmt: skip

# As the default of `looseleaf-lab`.
PRIVATE_TAGS = ("looseleaf-private",)


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


def _setting(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel may be told: LOOSELEAF_KERNEL_<FIELD> over [kernel] of the TOML files over these defaults.

    The endpoint's variable is LOOSELEAF_ENDPOINT, because people set it by hand.
    """

    endpoint: str = _setting("", "path of a daemon's kernel socket; empty: the first one in `run_dir`")
    run_dir: str = _setting("", "folder of the sockets; default: the cluster's")
    connect_timeout_s: float = _setting(5.0, "limit of a connection to the daemon")
    request_timeout_s: float = _setting(30.0, "limit of a request to the daemon")
    reconnect_interval_s: float = _setting(1.0, "time between tries to reach a daemon that was lost")
    recover_timeout_s: float = _setting(
        60.0, "how long a cell whose daemon was lost waits for it, to go on or to learn what became of the cell")
    # Design §3.
    small_read_bytes_max: int = _setting(16 << 20, "device payloads up to this size are read without a GPU")
    # Without, only a GPU cell or a preparation saves, as suits a notebook whose session ends with its run.
    commit_idle: bool = _setting(
        True, "save also what nothing needs yet: while the kernel is idle, and at its end")
    # Workers read this, too: from the same TOML files, or from the environment of the cluster.
    paranoid: bool = _setting(
        False, "saves compare all memory byte by byte with a copy kept of it: twice the memory, some times as slow")
    secret_names: tuple[str, ...] = _setting(
        SECRET_NAMES, "variables of the environment that are never saved: a list of shell patterns, in the variable "
        "separated by commas; empty: none is kept out")
    journal_bytes_max: int = _setting(
        4 << 20, "bytes kept on disk of one cell's outputs, for `looseleaf outputs`; 0: none"
    )
    wait_line_after_s: float = _setting(
        0.5, "a GPU cell that has not begun by then says what it waits for, where no page with `looseleaf-lab` does; "
        "0: never")
    predict: bool = _setting(
        True, "prepare the cells behind one that has ended, as the notebook's file or earlier runs tell them, where no "
        "front end tells of edits")
    private_tags: tuple[str, ...] = _setting(
        PRIVATE_TAGS, "tags of cells that are never prepared so: a list, in the variable separated by commas; the "
        "extension has its own in its settings")
    log_level: str = _setting("warning", "least severe events to log")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> KernelConfig:
        """The configuration of this process; raises ConfigError naming the variable or key that is wrong."""
        env = os.environ if environ is None else environ
        known = {entry.name: entry for entry in fields(cls)}
        values: dict[str, Any] = {}
        for key, found in read_values("kernel", env).items():
            if key not in known:
                raise no_such_setting(f"kernel.{key}", found.origin, known)
            values[key] = _convert(key, found.value, found.origin, type(known[key].default))
        for name, entry in known.items():
            variable = cls.variable(name)
            if variable in env:
                values[name] = _convert(name, env[variable], variable, type(entry.default))
        values["run_dir"] = values.get("run_dir") or str(default_run_dir(env))
        return cls(**values)

    @classmethod
    def load_one(cls, name: str, environ: Mapping[str, str] | None = None) -> Any:
        """One field (not `run_dir`), at a part of the price. Raises ConfigError if it, or a whole file, is wrong."""
        env = os.environ if environ is None else environ
        default = next(entry.default for entry in fields(cls) if entry.name == name)
        variable = cls.variable(name)
        if variable in env:
            return _convert(name, env[variable], variable, type(default))
        found = read_values("kernel", env).get(name)
        return default if found is None else _convert(name, found.value, found.origin, type(default))

    @classmethod
    def variable(cls, name: str) -> str:
        """The environment variable of a field."""
        return "LOOSELEAF_ENDPOINT" if name == "endpoint" else f"LOOSELEAF_KERNEL_{name.upper()}"

    def kernel_socket(self) -> Path:
        """The socket to connect to; it need not exist yet."""
        if self.endpoint:
            return Path(self.endpoint.removeprefix("unix:")).expanduser()
        found = sorted(Path(self.run_dir).glob("kernel-*.sock"))
        return found[0] if found else Path(self.run_dir) / "kernel-h0.sock"


def _convert(name: str, value: Any, origin: str, kind: type) -> Any:
    try:
        if kind is bool and not isinstance(value, bool):
            return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[str(value).lower()]
        return _texts(value) if kind is tuple else kind(value)
    except (TypeError, ValueError, KeyError) as error:
        kinds = {bool: "true or false", float: "a number", int: "a whole number", tuple: "a list of strings"}
        raise wrong_value(f"kernel.{name}", value, origin, f"must be {kinds.get(kind, kind.__name__)}") from error


def _texts(value: Any) -> tuple[str, ...]:
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TypeError
    return tuple(text.strip() for text in found if text.strip())
