"""Parameters of a notebook, given and written as papermill does: `-p NAME VALUE` becomes a cell `NAME = VALUE`."""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import nbformat.v4

from looseleaf.errors import InvalidArgument, Unsupported

PARAMETERS_TAG: Final = "parameters"
INJECTED_TAG: Final = "injected-parameters"
FILE_BYTES_MAX: Final = 16 << 20
_WORDS: Final[Mapping[str, Any]] = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "null": None, "~": None,
}  # fmt: skip
# A value that begins like this is YAML; any other text is itself, however much it looks like YAML.
_YAML_STARTS: Final = ("[", "{", '"', "'")


def collect(
    files: Sequence[Path], typed: Sequence[tuple[str, str]], raw: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """All parameters of a run; later ones win, `typed` over `files`, `raw` over both.

    Raises InvalidArgument `PARAMETER_MALFORMED` or `PARAMETERS_UNREADABLE`, Unsupported `YAML_MISSING`.
    """
    found: dict[str, Any] = {}
    for path in files:
        found.update(read_parameters(path))
    found.update({name: typed_value(value) for name, value in typed})
    found.update(raw)
    for name in found:
        if not name.isidentifier() or keyword.iskeyword(name):
            text = f"{name!r} is no name of a variable; write -p NAME VALUE, such as -p steps 100"
            raise InvalidArgument("PARAMETER_MALFORMED", text)
    return found


def typed_value(text: str) -> Any:
    """The value that a person means by `text`.

    True, False and None (true, false, null, ~), whole and decimal numbers; YAML where it begins with a bracket, a brace
    or a quote; else the text. Raises as `collect`.
    """
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return _from_yaml(text, f"the value {text!r}") if text.startswith(_YAML_STARTS) else text


def read_parameters(path: Path) -> dict[str, Any]:
    """The map of names to values in a YAML or JSON file. Raises as `collect`."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidArgument("PARAMETERS_UNREADABLE", f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("PARAMETERS_UNREADABLE", f"{path} cannot be read: {error}") from error
    found = _from_yaml(text, str(path))
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InvalidArgument("PARAMETERS_UNREADABLE", f"{path} holds no map of names to values")
    return found


def _from_yaml(text: str, where: str) -> Any:
    try:
        # What is JSON needs nothing installed.
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise Unsupported(
            "YAML_MISSING", f"{where} is no JSON, and PyYAML is not installed: `pip install 'looseleaf[yaml]'`"
        ) from None

    class _WithoutDates(yaml.SafeLoader):
        """A date stays the text that it is, as a notebook's literals have no dates."""

        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    try:
        return yaml.load(text, Loader=_WithoutDates)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidArgument("PARAMETERS_UNREADABLE", f"{where} is neither JSON nor YAML: {reason}") from error


def inject(nb: Any, parameters: Mapping[str, Any]) -> Any:
    """The notebook with a cell that assigns the parameters; the given one is not changed in its cells.

    The cell takes the place of an earlier injected one, else follows the first cell tagged `parameters`, else is the
    first. Without parameters the notebook stays as it is.
    """
    if not parameters:
        return nb
    nb = nbformat.v4.upgrade(nb)  # type: ignore[no-untyped-call]
    cell = nbformat.v4.new_code_cell(source=source_of(parameters))  # type: ignore[no-untyped-call]
    cell.metadata["tags"] = [INJECTED_TAG]
    begin, end = 0, 0
    if (at := _tagged(nb, INJECTED_TAG)) is not None:
        begin, end = at, at + 1
    elif (at := _tagged(nb, PARAMETERS_TAG)) is not None:
        begin = end = at + 1
    nb.cells = [*nb.cells[:begin], cell, *nb.cells[end:]]
    return nb


def has_place(nb: Any) -> bool:
    """Whether the notebook says where its parameters are."""
    return _tagged(nb, PARAMETERS_TAG) is not None or _tagged(nb, INJECTED_TAG) is not None


def _tagged(nb: Any, tag: str) -> int | None:
    return next((index for index, cell in enumerate(nb.cells) if tag in cell.metadata.get("tags", [])), None)


def source_of(parameters: Mapping[str, Any]) -> str:
    """The cell's text: a comment, then one assignment a line."""
    return "# Parameters\n" + "".join(f"{name} = {_literal(value)}\n" for name, value in parameters.items())


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        value = value.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{value}"'
