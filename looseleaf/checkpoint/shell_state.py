"""Settings of the IPython shell and of its inline figures, as sections of the process state (design §3)."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

_Values = dict[str, Any]

# Of the formatter of plain text: `%precision`, `%pprint` and their like.
_PRINTING: Final = ("pprint", "float_precision", "max_width", "max_seq_length", "newline", "verbose")
_CALLS: Final = ("automagic", "autocall")
_INLINE: Final = ("print_figure_kwargs", "figure_formats", "close_figures", "rc")
_FORMATS: Final = {
    "image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg", "application/pdf": "pdf",
}  # fmt: skip
_KINDS: Final = ("line", "cell")


def shell_here() -> Any:
    """The IPython shell of this process, None if there is none."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


def read_shell(_: Mapping[str, Any]) -> _Values:
    """What magics set: how results and errors are shown, magics and aliases of the session, extensions."""
    shell = shell_here()
    plain = shell.display_formatter.formatters["text/plain"]
    magics, aliases = _own_magics(shell)
    return {
        "printing": {name: getattr(plain, name) for name in _PRINTING},
        "interactivity": shell.ast_node_interactivity,
        "errors": shell.InteractiveTB.mode,
        "automagic": shell.automagic,
        "autocall": shell.autocall,
        "formatters": _own_formatters(shell),
        "magics": magics,
        "aliases": aliases,
        "extensions": sorted(shell.extension_manager.loaded),
    }


def _own_magics(shell: Any) -> tuple[_Values, list[tuple[str, str, str, str]]]:
    """Functions of the session that were registered as magics, and other names for magics."""
    magics: _Values = {kind: {} for kind in _KINDS}
    aliases = []
    for kind in _KINDS:
        for name, function in sorted(shell.magics_manager.magics[kind].items()):
            if type(function) is types.FunctionType and function.__globals__ is shell.user_ns:
                magics[kind][name] = function
            elif type(function).__name__ == "MagicAlias":
                aliases.append((kind, name, function.magic_name, function.magic_params or ""))
    return magics, aliases


def _own_formatters(shell: Any) -> list[tuple[str, type, Any]]:
    """(MIME type, type, function) of functions of the session that show values of a type."""
    return [
        (mime, kind, function)
        for mime, formatter in shell.display_formatter.formatters.items()
        for kind, function in formatter.type_printers.items()
        if type(function) is types.FunctionType and function.__globals__ is shell.user_ns
    ]


def apply_shell(values: Mapping[str, Any]) -> None:
    """The inverse of `read_shell`. What was taken away since stays: magics, formatters, extensions."""
    shell = shell_here()
    plain = shell.display_formatter.formatters["text/plain"]
    for name, value in values["printing"].items():
        if getattr(plain, name) != value:
            setattr(plain, name, value)
    # A trait tells many that it was set, also to what it was.
    for name, value in (("ast_node_interactivity", values["interactivity"]), *((n, values[n]) for n in _CALLS)):
        if getattr(shell, name) != value:
            setattr(shell, name, value)
    if shell.InteractiveTB.mode != values["errors"]:
        shell.InteractiveTB.set_mode(mode=values["errors"])
    for extension in sorted(set(values["extensions"]) - shell.extension_manager.loaded):
        shell.extension_manager.load_extension(extension)
    for mime, shown, function in values["formatters"]:
        shell.display_formatter.formatters[mime].type_printers[shown] = function
    for kind, functions in values["magics"].items():
        for name, function in functions.items():
            shell.magics_manager.magics[kind][name] = function
    known = {(kind, name) for kind in _KINDS for name in shell.magics_manager.magics[kind]}
    for kind, name, magic, parameters in values["aliases"]:
        if (kind, name) not in known:
            shell.magics_manager.register_alias(name, magic, kind, parameters or None)


def inline_is_used() -> bool:
    """Whether figures may be shown by matplotlib's inline backend here."""
    module = sys.modules.get("matplotlib_inline.config")
    return shell_here() is not None and module is not None and module.InlineBackend.initialized()


def read_inline(_: Mapping[str, Any]) -> _Values:
    """In which formats figures are shown, and whether they stay open."""
    from matplotlib_inline.config import InlineBackend

    backend = InlineBackend.instance()
    found = {name: getattr(backend, name) for name in _INLINE}
    shown = _formats_shown()
    if shown is not None:
        found["figure_formats"], found["print_figure_kwargs"] = shown
    return {**found, "figure_formats": sorted(found["figure_formats"])}


def _formats_shown() -> tuple[set[str], _Values] | None:
    """The formats and options that the shell has for figures, which may be others than the backend's own."""
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    formats: set[str] = set()
    options: _Values = {}
    for mime, name in _FORMATS.items():
        printer = shell_here().display_formatter.formatters[mime].type_printers.get(figure)
        if isinstance(printer, functools.partial):
            formats.add("retina" if printer.func.__name__ == "retina_figure" else name)
            options.update({key: value for key, value in printer.keywords.items() if key not in ("fmt", "base64")})
    return (formats, options) if formats else None


def apply_inline(values: Mapping[str, Any]) -> None:
    """The inverse of `read_inline`; before the backend is used it only learns of it."""
    from matplotlib_inline.config import InlineBackend

    backend = InlineBackend.instance(parent=shell_here())
    shown = _formats_shown()
    if shown is not None and shown[0] != set(values["figure_formats"]):
        # So that the backend sees a change, and tells the shell.
        backend.figure_formats = set()
    for name, value in values.items():
        wanted = set(value) if name == "figure_formats" else value
        if getattr(backend, name) != wanted:
            setattr(backend, name, wanted)
