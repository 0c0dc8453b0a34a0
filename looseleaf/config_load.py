"""Loads the models of `looseleaf.config` and says of every setting where its value comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsError

from looseleaf.config import ClusterConfig, DaemonConfig, FrontendConfig, SchedulerConfig, StoreConfig
from looseleaf.config_files import ConfigError, no_such_setting, read_values, wrong_value
from looseleaf.kernel_config import KernelConfig

C = TypeVar("C", bound=BaseSettings)

# Every section of a file but [kernel], which is read where there is no pydantic.
MODELS: Final[Mapping[str, type[BaseSettings]]] = {
    model.section: model for model in (ClusterConfig, StoreConfig, SchedulerConfig, FrontendConfig, DaemonConfig)
}
DEFAULT: Final = "default"
# Variables that are no settings: of the build, of processes that we start, of kernels.
_OTHERS: Final = frozenset(
    f"LOOSELEAF_{name}" for name in (
        "BUILT_WITH_CUDA", "CLUSTER_ID", "CONFIG", "CORPUS", "CUDA", "CUDA_ARCHS", "DOCS_URL", "GPU_MEMORY_BYTES",
        "HOST_ID", "LOG_DIR", "NATIVE", "POOL_GPUS", "SESSION", "SESSION_TITLE", "SMI_FOLDER", "THREADS",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is now. `origin`: "default", "path:line" of a file, or the name of a variable."""

    section: str
    name: str
    value: Any
    origin: str
    description: str
    variable: str

    @property
    def key(self) -> str:
        """Such as "scheduler.lease_ttl_ms"."""
        return f"{self.section}.{self.name}"


def load(model: type[C], flags: Mapping[str, Any] | None = None) -> C:
    """The model with `flags` over variables over files over its defaults; raises ConfigError, which names the place.

    Of several problems the first is told.
    """
    given = dict(flags or {})
    section = str(getattr(model, "section", ""))
    try:
        return model(**given)
    except ValidationError as error:
        raise _problem(model, section, given, error) from error
    except SettingsError as error:
        # A variable of a list that is not JSON; pydantic names the field in its text only.
        name = next((name for name in model.model_fields if f'"{name}"' in str(error)), "")
        variable = variable_of(model, name)
        raise wrong_value(f"{section}.{name}", os.environ.get(variable), variable, "must be a JSON list") from error


def settings(section: str) -> list[Setting]:
    """All settings of a section in the order of its model; raises ConfigError."""
    found = read_values(section)
    if section == "kernel":
        config: Any = KernelConfig.load()
        described = {entry.name: str(entry.metadata["description"]) for entry in fields(KernelConfig)}
    else:
        config = load(MODELS[section])
        described = {name: field.description or "" for name, field in MODELS[section].model_fields.items()}
    made = []
    for name, description in described.items():
        variable = KernelConfig.variable(name) if section == "kernel" else variable_of(MODELS[section], name)
        origin = _set_variable(variable) or (found[name].origin if name in found else DEFAULT)
        made.append(Setting(section, name, getattr(config, name), origin, description, variable))
    return made


def mistyped_variables() -> dict[str, str]:
    """Variables of the environment that are no setting, as nobody would tell otherwise, with the setting's they may be.

    Those that are near none are left alone: others may have variables of such names.
    """
    known = {variable_of(model, name) for model in MODELS.values() for name in model.model_fields}
    known |= {KernelConfig.variable(entry.name) for entry in fields(KernelConfig)}
    found = {}
    for name in sorted(os.environ):
        if name.startswith("LOOSELEAF_") and name not in known | _OTHERS and name.upper() not in known:
            if near := get_close_matches(name, known, n=1, cutoff=0.85):
                found[name] = near[0]
    return found


def variable_of(model: type[BaseSettings], name: str) -> str:
    """The environment variable of a field."""
    return f"{model.model_config['env_prefix']}{name}".upper()


def default_of(section: str, name: str) -> Any:
    """The default as the model has it; None for one that depends on the machine."""
    if section == "kernel":
        return next(entry.default for entry in fields(KernelConfig) if entry.name == name)
    default = MODELS[section].model_fields[name].default
    return None if default is PydanticUndefined else default


def flag_of(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def _set_variable(variable: str) -> str:
    """The variable as it is set, whose name may be written in any case; empty if it is not."""
    return next((name for name in os.environ if name.upper() == variable), "")


def _problem(model: type[BaseSettings], section: str, given: Mapping[str, Any], error: ValidationError) -> ConfigError:
    item = error.errors(include_url=False)[0]
    name = str(item["loc"][0]) if item["loc"] else ""
    found = read_values(section)
    in_file = found[name].origin if name in found else ""
    if item["type"] == "extra_forbidden":
        return no_such_setting(f"{section}.{name}", in_file or flag_of(name), model.model_fields)
    # Pydantic says "Value error, " before the texts of our own validators.
    allowed = item["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if not name:
        text = f"settings of [{section}]: {allowed}"
        return ConfigError("CONFIG_INVALID", text, key=section, allowed=allowed)
    origin = flag_of(name) if name in given else _set_variable(variable_of(model, name)) or in_file or DEFAULT
    return wrong_value(f"{section}.{name}", item["input"], origin, allowed)
