"""What is known about IPython's magics, and how one stands in transformed Python."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

# Cell magics that run their body as Python of the session; the value: its bindings stay out of the namespace.
BODY_IS_PYTHON: Final[dict[str, bool]] = {
    "time": False,
    "capture": False,
    "prun": False,
    "memit": False,
    "mprun": False,
    "lprun": False,
    "debug": False,
    "timeit": True,
}
SHELL_CELL_MAGICS: Final = frozenset({"bash", "sh", "script", "system", "sx", "!", "cmd"})
BODY_IS_NOT_PYTHON: Final = SHELL_CELL_MAGICS | frozenset(
    {
        "HTML", "html", "SVG", "svg", "javascript", "js", "latex", "markdown", "mermaid", "css", "writefile", "file",
        "perl", "ruby", "R", "python", "python2", "python3", "pypy", "cython", "sql", "bigquery", "cpp", "cu", "cuda",
        "julia", "octave", "lua",
    }
)  # fmt: skip
# Line magics whose argument is Python that stays in the namespace, and those whose bindings do not stay.
STATEMENT_MAGICS: Final = frozenset({"time"})
ISOLATED_MAGICS: Final = frozenset({"timeit", "prun", "memit", "lprun", "mprun"})
# Line magics that read or replace the namespace as a whole.
NAMESPACE_MAGICS: Final = frozenset(
    {
        "run", "who", "who_ls", "whos", "store", "macro", "rerun", "recall", "edit",
        "debug", "pastebin", "save", "psearch", "paste", "cpaste",
    }
)  # fmt: skip
# Line magics that take names away and need no value.
FORGETTING_MAGICS: Final = frozenset({"reset", "reset_selective"})
# Line magics that touch no name of the session besides `{x}` and `$x`.
QUIET_MAGICS: Final = frozenset(
    {
        "matplotlib", "config", "load_ext", "reload_ext", "unload_ext", "autoreload", "aimport", "env", "set_env",
        "cd", "pwd", "ls", "ll", "mkdir", "rmdir", "cat", "cp", "mv", "rm", "man", "more", "less", "pip", "conda",
        "mamba", "uv", "alias", "unalias", "autosave", "automagic", "autocall", "autoawait", "bookmark", "colors",
        "dhist", "dirs", "pushd", "popd", "doctest_mode", "gui", "history", "hist", "killbgscripts", "load", "loadpy",
        "logstart", "logstop", "logon", "logoff", "lsmagic", "magic", "notebook", "pdb", "pprint", "precision",
        "profile", "quickref", "system", "sx", "sc", "tb", "xmode", "page", "tensorboard", "watermark", "javascript",
        "micromamba", "connect_info", "qtconsole", "tensorflow_version",
    }
)  # fmt: skip
# `x?` and `x??` become these.
HELP_MAGICS: Final = frozenset({"pinfo", "pinfo2", "pdoc", "pdef", "psource", "pfile"})
# A language in which a cell magic's body may name variables of the session: `{x}`, `:x`, `$x`, `@x`.
QUERY_CELL_MAGICS: Final = frozenset({"sql", "bigquery"})
# Line magics that are an installer's command line.
INSTALL_MAGICS: Final = frozenset({"pip", "conda", "mamba", "micromamba", "uv"})
# First words of one-line cells that automagic takes for magics although no `%` is there.
AUTOMAGIC_WORDS: Final = frozenset(
    {
        "pip", "conda", "mamba", "uv", "cd", "ls", "ll", "cat", "mkdir", "rm", "cp", "mv", "pwd", "run",
    }
)  # fmt: skip

# At the place of a command: what may stand before its name, the installers, and what they do.
_BEFORE_COMMAND = r"^\s*(?:(?:sudo|env|yes|time|nohup)\s+|\w+=\S*\s+)*"
_PYTHON_COMMAND = r"(?:\{?\$?sys\.executable\}?|(?:\S*/)?python[\d.]*)\s+(?:-\w+\s+)*?"
_INSTALLER = re.compile(
    rf"{_BEFORE_COMMAND}(?:(?:{_PYTHON_COMMAND}-m\s+)?"
    r"(?:\S*/)?(?:pip[\d.]*|conda|mamba|micromamba|uv|poetry|pdm|pixi|apt|apt-get)\s+(?:(?:-\S+|pip|tool|self)\s+)*"
    rf"(?:install|uninstall|add|remove|update|upgrade|sync|create)\b|{_PYTHON_COMMAND}setup\.py\s+(?:install|develop)\b)"
)
_COMMAND_END = re.compile(r"&&|\|\||[;|&]")
_INTERPOLATION = re.compile(r"(?<![{$])\{([^{}]+)\}(?!\})|(?<![$\\])\$\$?([A-Za-z_]\w*)")
_OPTION = re.compile(r"^(?:-[a-zA-Z]+(?:\s*\d+)?|--\w[\w-]*)\s+")


_KNOWN: Final = (
    BODY_IS_PYTHON.keys() | BODY_IS_NOT_PYTHON | STATEMENT_MAGICS | ISOLATED_MAGICS | NAMESPACE_MAGICS | QUIET_MAGICS
    | HELP_MAGICS | FORGETTING_MAGICS | {"!", "gpu", "cpu", "looseleaf", "pylab", "xdel"}
)  # fmt: skip


def empties_namespace(line: str) -> bool:
    """`line` of `%reset` does so without a question: with `-f`, and not only the caches that it names."""
    words = line.split()
    return bool(words) and all(re.fullmatch(r"-[fs]+", word) for word in words) and any("f" in word for word in words)


def may_be_persons(name: str) -> bool:
    """A magic that is not IPython's own or a known extension's: cells may have registered a function of this name."""
    return name.isidentifier() and name not in _KNOWN


def commands_of(line: str) -> list[str]:
    """The commands of a shell line, near enough: quotes are not followed."""
    return [part for part in _COMMAND_END.split(line) if part.strip()]


def is_install(command: str) -> bool:
    """The command changes which packages are there: pip, conda, uv and their like at work."""
    return bool(_INSTALLER.match(command))


@dataclass(frozen=True, slots=True)
class MagicCall:
    """A magic or shell line in transformed Python: `name` is "!" for a shell line, `line` its argument.

    `body`: of a cell magic that is called as such.
    """

    name: str
    line: str
    body: str = ""

    @property
    def commands(self) -> list[str]:
        """What a shell runs for it."""
        if self.name == "!":
            return commands_of(self.line)
        return [f"{self.name} {self.line}"] if self.name in INSTALL_MAGICS else []


def magic_call(call: ast.Call) -> MagicCall | None:
    """The magic that `call` stands for, or None if it is any other call."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return None
    # `ip = get_ipython()` has any name; these methods have but one meaning.
    named = isinstance(func.value, ast.Name) and func.attr in ("run_line_magic", "run_cell_magic")
    if not named and not is_shell(func.value):
        return None
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if len(texts) != len(call.args) or not texts:
        return None
    if func.attr in ("system", "getoutput", "getoutput_list"):
        return MagicCall("!", texts[0])
    if func.attr in ("run_line_magic", "run_cell_magic", "magic"):
        if func.attr == "magic":
            name, _, line = texts[0].lstrip("%").partition(" ")
            return MagicCall(name, line)
        return MagicCall(texts[0], *texts[1:3]) if len(texts) > 1 else MagicCall(texts[0], "")
    return None


def is_shell(node: ast.expr) -> bool:
    """`get_ipython()`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "get_ipython"
        and not node.args
    )


def interpolated_expressions(line: str) -> list[str]:
    """The Python in `{x}` and `$x` of a shell or magic line, in order; `$$x` is the shell's, as in IPython."""
    found = []
    for match in _INTERPOLATION.finditer(line):
        if match[1] is not None:
            # A format specification such as `{x:.2f}` is not part of the expression.
            found.append(match[1])
        elif not match[0].startswith("$$"):
            found.append(match[2])
    return found


def without_options(line: str) -> str:
    """`line` without the options that stand before its Python, as `%timeit -n 10 f(x)` has."""
    while match := _OPTION.match(line):
        line = line[match.end() :]
    return line.strip()
