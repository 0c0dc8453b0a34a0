"""From the text of a cell to the Python that IPython would run: cell magics unwrapped, line magics as calls.

Executes nothing and needs no running shell. IPython turns a cell magic into one call with the body as a string, which
would hide every name in it; so cell magics are unwrapped here, before IPython's own transforms see the body.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace

from IPython.core.inputtransformer2 import TransformerManager, leading_empty_lines, leading_indent

from looseleaf.recipe.gpu_line import GpuLine, parse_gpu_line
from looseleaf.recipe.magics import (
    AUTOMAGIC_WORDS,
    BODY_IS_NOT_PYTHON,
    BODY_IS_PYTHON,
    QUERY_CELL_MAGICS,
    SHELL_CELL_MAGICS,
    interpolated_expressions,
    without_options,
)
from looseleaf.recipe.tree import UNPARSEABLE, parse, without_warnings

# A cell magic in a cell magic, such as %%gpu above %%time; more than this is refused as text that does not parse.
NESTED_MAGICS_MAX = 8

_MAGIC_LINE = re.compile(r"%%(?P<name>[^\s?]+)(?P<help>\?*)[ \t]*(?P<line>[^\n]*)\n?")
_CAPTURE_TARGET = re.compile(r"(?:^|\s)([A-Za-z_]\w*)\s*$")
_OUT_OPTION = re.compile(r"--(?:out|err|proc)[ =]+([A-Za-z_]\w*)")
# Variables of the session in a query, whatever the extension's way to write them: `{x}`, `{{x}}`, `:x`, `$x`, `@x`.
_QUERY_NAME = re.compile(r"(?:\{\{?\s*|(?<![:\w]):|\$|@)([A-Za-z_]\w*)")

# What IPython's transforms may change, more rather than less: magics, help, automatic calls, prompts, an indented cell.
_TRANSFORMED = re.compile(r"^[ \t]*(?:[%!?,;/]|>>>|\.\.\.|In *\[)|\?[ \t]*(?:#.*)?$|=[ \t]*[%!]|\A\s", re.MULTILINE)

_TRANSFORMS = TransformerManager()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Transformed:
    """A cell after the transforms.

    `python`: what IPython would run, or the text itself if IPython's transforms refuse it; line magics and shell lines
    stand in it as `get_ipython()` calls.
    `isolated`: the body's bindings do not reach the namespace (`%%timeit`).
    `optional`: an unknown cell magic may run the body as Python; it need not parse.
    `override`: "gpu", "cpu" or empty. `gpu`: what was said behind `%%gpu`.
    `binds`: names that a cell magic binds, such as `%%capture out`.
    `reads`: expressions that magic lines interpolate. `shell`: bodies and lines that a shell runs.
    `files`: (path, text) of `%%writefile`. `magics`: names of the cell magics, outermost first.
    `tree`: of `python`, if it was parsed on the way.
    """

    python: str
    isolated: bool = False
    optional: bool = False
    override: str = ""
    gpu: GpuLine = GpuLine()
    setup: str = ""
    binds: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    magics: tuple[str, ...] = ()
    tree: ast.Module | None = field(default=None, compare=False, repr=False)


def transform(source: str) -> Transformed:
    """The cell as Python, with what its magics say; never raises for any text."""
    state = Transformed(python=source)
    for _ in range(NESTED_MAGICS_MAX):
        text = _dedented(state.python)
        match = _MAGIC_LINE.match(text)
        if match is None:
            break
        state = _unwrap(state, match, text[match.end() :])
        if not state.python.strip():
            return replace(state, python="")
    python, tree = _python_of(state.python)
    return replace(state, python=python, tree=tree)


def python_of(text: str) -> str:
    """`text` after IPython's line and token transforms; `text` itself if they refuse it."""
    return _python_of(text)[0]


def _python_of(text: str) -> tuple[str, ast.Module | None]:
    """The Python, and its tree if the text was Python as it stood."""
    magic = _automagic(text)
    if magic == text:
        # Most cells hold nothing for IPython's transforms, which take longer than all the rest.
        try:
            return text, parse(text)
        except UNPARSEABLE:
            if not _TRANSFORMED.search(text):
                return text, None
    try:
        with without_warnings(text):
            return str(_TRANSFORMS.transform_cell(magic)), None
    except (*UNPARSEABLE, LookupError, AssertionError):
        # It stumbles over some texts that are no Python, such as `=%` before a backslash.
        return magic, None


def _dedented(text: str) -> str:
    lines = leading_empty_lines(text.splitlines(keepends=True))  # type: ignore[no-untyped-call]
    lines = leading_indent(lines)  # type: ignore[no-untyped-call]
    return "".join(lines)


def _unwrap(state: Transformed, match: re.Match[str], body: str) -> Transformed:
    name, line = match["name"], match["line"].strip()
    state = replace(state, magics=(*state.magics, name), reads=(*state.reads, *interpolated_expressions(line)))
    if match["help"]:
        return replace(state, python="")
    if name in ("gpu", "cpu"):
        # The innermost override is the one that the person wrote last.
        return replace(state, override=name, gpu=parse_gpu_line(line) if name == "gpu" else GpuLine(), python=body)
    if name in BODY_IS_PYTHON:
        target = _CAPTURE_TARGET.search(line) if name == "capture" else None
        binds = (*state.binds, target[1]) if target else state.binds
        isolated = state.isolated or BODY_IS_PYTHON[name]
        setup = without_options(line) if name == "timeit" else ""
        return replace(state, python=body, binds=binds, isolated=isolated, setup=setup or state.setup)
    if name in BODY_IS_NOT_PYTHON:
        return replace(_foreign(state, name, line, body), python="")
    return replace(state, python=body, optional=True)


def _foreign(state: Transformed, name: str, line: str, body: str) -> Transformed:
    """What a cell magic whose body is not Python of this session binds, reads and writes."""
    binds = (*state.binds, *_OUT_OPTION.findall(line))
    if name in ("writefile", "file"):
        path = line.rsplit(maxsplit=1)[-1] if line else ""
        return replace(state, files=(*state.files, (path.strip("'\""), body)))
    if name in SHELL_CELL_MAGICS:
        return replace(state, shell=(*state.shell, body), binds=binds)
    if name == "R":
        reads = re.findall(r"-i\s+(\S+)", line)
        outs = re.findall(r"-o\s+(\S+)", line)
        return replace(
            state,
            reads=(*state.reads, *(n for names in reads for n in names.split(","))),
            binds=(*binds, *(n for names in outs for n in names.split(",") if n.isidentifier())),
        )
    if name in QUERY_CELL_MAGICS:
        return replace(state, reads=(*state.reads, *_QUERY_NAME.findall(body)), binds=binds)
    return replace(state, binds=binds)


def _automagic(text: str) -> str:
    """A one-line cell such as `pip install x` or `cd data` with the `%` that IPython's automagic would add."""
    stripped = text.strip()
    if "\n" in stripped or not stripped:
        return text
    word, _, rest = stripped.partition(" ")
    if word in AUTOMAGIC_WORDS and rest and not re.match(r"\s*(=|\.|\(|\[|,|:|[-+*/%&|^<>]=? )", rest):
        return f"%{stripped}"
    return text
