"""The options of `looseleaf up` and `looseleaf lab`: one for each setting of [cluster], read off its model.

The model is imported when such a command is used, not when the program's help is shown.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from typer.core import TyperCommand

_META: Final = "looseleaf.cluster"
# Older names of options.
_ALIASES: Final = {"start_timeout_s": ("--timeout-s",), "hosts_max": ("--max-hosts",)}
_METAVARS: Final = {int: "INTEGER", float: "FLOAT", Path: "PATH", str: "TEXT"}


class ClusterCommand(TyperCommand):
    """A command with an option for each setting of [cluster]; `given_settings` has those that were given."""

    _all: list[Any]
    _complete = False

    @property
    def params(self) -> list[Any]:
        """Its own parameters and the settings: one list, which click itself changes."""
        if not self._complete:
            self._complete = True
            self._all.extend(_options())
        return self._all

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._all = own


def given_settings(context: typer.Context) -> dict[str, Any]:
    """The settings that the command line has, as texts and switches."""
    found: dict[str, Any] = context.meta.get(_META, {})
    return dict(found)


def refuse_other_cluster(record: Any, config: Any, given: dict[str, Any]) -> None:
    """Raises PreconditionFailed CLUSTER_RUNNING if the running cluster has not what the command line asks for."""
    from looseleaf.errors import PreconditionFailed

    has = {"gpus": record.gpus_per_host, "device": record.device, "hosts": len(record.hosts)}
    other = [
        f"{name} {has[name]}" for name in has
        if name in given and getattr(config, name) not in (None, has[name], "auto" if name == "device" else None)
    ]
    if other:
        raise PreconditionFailed(
            "CLUSTER_RUNNING",
            f"a cluster runs already, with {', '.join(other)}: `looseleaf down` first, or give another --data",
        )


def _options() -> list[Any]:
    """Typer's parameters of a function that had the settings as its arguments."""
    from typer.main import get_command

    from looseleaf.config import ClusterConfig
    from looseleaf.config_load import flag_of

    def settings(**_values: Any) -> None:
        raise AssertionError("only its parameters are used")

    kinds: dict[str, Any] = {}
    for name, field in ClusterConfig.model_fields.items():
        flag = flag_of(name)
        words = get_args(field.annotation) or (field.annotation,)
        choices = [word for word in words if isinstance(word, str)]
        switch = words[0] is bool
        metavar = f"[{'|'.join(choices)}]" if choices else _METAVARS.get(words[0], "TEXT")
        flags = [f"{flag}/--no-{name.replace('_', '-')}"] if switch else [flag, *_ALIASES.get(name, ())]
        known = field.default if type(field.default) in (bool, int, float, str) and name != "python" else None
        kinds[name] = Annotated[bool | None if switch else str | None, typer.Option(
            *flags, help=_help(field.description or "", known), show_default=False, expose_value=False, callback=_keep,
            rich_help_panel="Switches" if switch else None, metavar=None if switch else metavar,
        )]  # fmt: skip
    settings.__annotations__ = kinds
    arguments = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kinds[name]) for name in kinds]
    settings.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(settings)
    return [parameter for parameter in get_command(app).params if parameter.name in kinds]


def _help(description: str, default: Any) -> str:
    text = description[:1].upper() + description[1:]
    if default is None:
        return f"{text}."
    shown = f"{default:g}" if isinstance(default, float) else f"{default}"
    if isinstance(default, bool):
        shown = "on" if default else "off"
    return f"{text}; default {shown}."


def _keep(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Remembers a value that was given; the model says whether it is right."""
    if value is not None and parameter.name:
        context.meta.setdefault(_META, {})[parameter.name] = value
    return value
