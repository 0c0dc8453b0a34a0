"""The tables of docs/configuration.md, made of the models: `python tests/cli/config_page.py` writes them there."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from looseleaf.config_files import SECTIONS
from looseleaf.config_load import MODELS, Setting, default_of, flag_of, settings

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
BEGIN: Final = "<!-- settings: begin (python tests/cli/config_page.py) -->"
END: Final = "<!-- settings: end -->"
KINDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}


def tables() -> str:
    """All sections, one table each."""
    parts = []
    for section in SECTIONS:
        rows = ["| key | takes | default | what it is |", "| --- | --- | --- | --- |"]
        rows += [
            f"| `{entry.name}` | {_takes(section, entry.name)} | {_default(section, entry)} | {entry.description} |"
            for entry in settings(section)
        ]
        parts.append(f"### [{section}]\n\n{_how(section)}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def page(text: str) -> str:
    """The page with its tables made anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.split(END)[1]}"


def _how(section: str) -> str:
    if section == "kernel":
        return "Variables `LOOSELEAF_KERNEL_<KEY>`, of `endpoint` `LOOSELEAF_ENDPOINT`; no flags."
    name = next(iter(MODELS[section].model_fields))
    program = {"cluster": "looseleaf up` and `looseleaf lab", "store": "looseleaf-checkpoint-store",
               "daemon": "looseleaf-worker-daemon"}.get(section, f"looseleaf-{section}")
    prefix = MODELS[section].model_config["env_prefix"]
    return f"Variables `{prefix}<KEY>`, flags of `{program}` such as `{flag_of(name)}`."


def _takes(section: str, name: str) -> str:
    if section == "kernel":
        kind: Any = type(default_of(section, name))
        return KINDS.get(kind, "list of texts")
    field = MODELS[section].model_fields[name]
    kind = field.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(word for word in get_args(kind) if word is not types.NoneType)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    bounds = {type(entry).__name__.lower(): entry for entry in field.metadata}
    limits = [f"{sign} {getattr(bounds[word], word)}" for word, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"))
              if word in bounds]
    return " ".join([KINDS.get(kind, "list of texts"), *limits])


def _default(section: str, entry: Setting) -> str:
    default = default_of(section, entry.name)
    if entry.name == "python":
        return "this interpreter"
    if isinstance(default, bool):
        return "true" if default else "false"
    if isinstance(default, tuple):
        return ", ".join(f"`{word}`" for word in default)
    return "" if default in (None, "", Path()) else f"{default}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(re.sub(r".*/docs/", "docs/", str(PAGE)))
