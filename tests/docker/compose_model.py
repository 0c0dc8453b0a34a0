"""The compose files as data: merged, variables filled in, and each service's settings as its program reads them.

Only what our files use is understood; anything else raises, so that a new kind of line gets its check.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from looseleaf.config import DaemonConfig, FrontendConfig, SchedulerConfig, ServiceConfig, StoreConfig
from looseleaf.rpc.service_main import flag_parser

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKER: Final = ROOT / "docker"
BASE_FILE: Final = "compose.yaml"
GPU_FILE: Final = "compose.gpu.yaml"

# What each program reads. looseleaf-lab starts a daemon with its own environment.
CONFIGS: Final[Mapping[str, type[ServiceConfig]]] = {
    "looseleaf-checkpoint-store": StoreConfig,
    "looseleaf-scheduler": SchedulerConfig,
    "looseleaf-frontend": FrontendConfig,
    "looseleaf-worker-daemon": DaemonConfig,
    "looseleaf-lab": DaemonConfig,
}
# Variables of ours that are no field of a service's settings; `looseleaf.kernel_config` reads them.
DIRECT_VARIABLES: Final = {"LOOSELEAF_RUN_DIR", "LOOSELEAF_DATA", "LOOSELEAF_CONFIG", "LOOSELEAF_ENDPOINT"}
# Fields that hold the address of another service.
PEER_FIELDS: Final = ("store", "scheduler", "frontend")

_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class ComposeService:
    """One service of the merged files."""

    name: str
    raw: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        """Program and flags."""
        return list(self.raw["command"])

    @property
    def environment(self) -> dict[str, str]:
        """As the container gets it, without what the image sets."""
        return {name: str(value) for name, value in self.raw.get("environment", {}).items()}

    @property
    def config_type(self) -> type[ServiceConfig]:
        """The settings of its program; raises KeyError for a program that is none of ours."""
        return CONFIGS[self.command[0]]

    def setting_of(self, variable: str) -> str | None:
        """The field that the variable sets, None if it sets none."""
        prefix = self.config_type.model_config["env_prefix"]
        field = variable.removeprefix(prefix).lower()
        return field if variable.startswith(prefix) and field in self.config_type.model_fields else None

    @property
    def config(self) -> Any:
        """Its settings; raises what its program would refuse."""
        given = {field: value for name, value in self.environment.items() if (field := self.setting_of(name))}
        if self.command[0] != "looseleaf-lab":
            flags = vars(flag_parser(self.command[0], self.config_type).parse_args(self.command[1:]))
            given |= {name: value for name, value in flags.items() if value is not None and not name.startswith("life")}
        return self.config_type(**{"run_dir": "/run/looseleaf", **given})

    @property
    def mounts(self) -> dict[str, str]:
        """Where the container may write: folder -> name of the volume, or "tmpfs" with its options."""
        found = {}
        for volume in self.raw.get("volumes", []):
            name, folder, *rest = volume.split(":")
            assert not rest and not name.startswith((".", "/")), f"{volume}: only named volumes are understood"
            found[folder] = name
        for mount in self.raw.get("tmpfs", []):
            folder, _, options = mount.partition(":")
            found[folder] = f"tmpfs:{options}"
        return found

    @property
    def ports(self) -> list[tuple[str, int, int]]:
        """Published ports: address of the host, port of the host, port of the container."""
        split = [port.split(":") for port in self.raw.get("ports", [])]
        return [(address, int(host), int(container)) for address, host, container in split]

    @property
    def profiles(self) -> set[str]:
        """Empty for a service that always runs."""
        return set(self.raw.get("profiles", []))

    @property
    def limits(self) -> Mapping[str, Any]:
        """Its resource limits."""
        return self.raw["deploy"]["resources"]["limits"]  # type: ignore[no-any-return]


def load(*file_names: str, variables: Mapping[str, str] | None = None) -> dict[str, ComposeService]:
    """The services of the files, later ones over earlier ones."""
    merged: Any = {}
    for file_name in file_names or (BASE_FILE,):
        text = (DOCKER / file_name).read_text(encoding="utf-8")
        merged = merge(merged, fill(yaml.safe_load(text), variables or {}))
    return {name: ComposeService(name, raw) for name, raw in merged["services"].items()}


def top_level(file_name: str = BASE_FILE) -> dict[str, Any]:
    """One file as it stands."""
    found: dict[str, Any] = yaml.safe_load((DOCKER / file_name).read_text(encoding="utf-8"))
    return found


def merge(below: Any, above: Any) -> Any:
    """As compose merges files: maps by key; of the lists that we use none occurs in two files."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: merge(below[key], above[key]) if key in below and key in above else {**below, **above}[key]
                for key in (*below, *(key for key in above if key not in below))}  # fmt: skip
    assert not (isinstance(below, list) and isinstance(above, list)), "how compose merges this list was not looked at"
    return above


def fill(value: Any, variables: Mapping[str, str]) -> Any:
    """`${NAME:-default}` replaced, in all strings."""
    if isinstance(value, dict):
        return {key: fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    filled = _VARIABLE.sub(lambda match: variables.get(match[1]) or match[2] or "", value)
    assert "$" not in filled, f"{value}: this form of variable is not understood"
    return filled


def variables_of(file_name: str) -> set[str]:
    """Names that a person may set."""
    text = (DOCKER / file_name).read_text(encoding="utf-8")
    return {match[1] for match in _VARIABLE.finditer(text)}


def scripts() -> dict[str, str]:
    """The programs that the package installs, with what they call."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["scripts"]
    return found


def size_bytes(text: str) -> int:
    """A size as compose writes it: 64m, 8g, 1gb."""
    match = re.fullmatch(r"(\d+)([kmg])b?", text)
    assert match, text
    return int(match[1]) << {"k": 10, "m": 20, "g": 30}[match[2]]


def duration_s(text: str) -> float:
    """A time as compose writes it; only seconds are used."""
    match = re.fullmatch(r"(\d+)s", text)
    assert match, text
    return float(match[1])
