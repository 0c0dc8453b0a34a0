"""`%%gpu` and `%%cpu`: marks for the recipe; where the cell really runs they change nothing.

The mark is taken off before IPython looks at the cell, so `%%time`, `%%capture` and the like work above and below it,
and line numbers stay as the person sees them.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

_MARK = re.compile(r"%%(gpu|cpu)(\s.*)?$", re.DOTALL)


def take_mark_off(lines: list[str]) -> list[str]:
    """An IPython input transformer: `lines`, each with its end, without a device mark in front.

    The mark becomes a comment line, or goes when a cell magic follows, which must be first.
    """
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None or not _MARK.match(lines[first].rstrip()):
        return lines
    rest = lines[first + 1 :]
    following = next((line for line in rest if line.strip()), "")
    if following.startswith("%%"):
        return take_mark_off(rest)
    return [*lines[:first], "#\n", *rest]


def register_device_magics(shell: InteractiveShell) -> None:
    """Makes `%%gpu` and `%%cpu` known to `shell`: as marks, in `%lsmagic` and for `run_cell_magic`."""
    shell.input_transformers_cleanup.insert(0, take_mark_off)

    def gpu(line: str, cell: str) -> Any:
        """Run this cell on a GPU."""
        return _run_body(shell, cell)

    def cpu(line: str, cell: str) -> Any:
        """Run this cell in the notebook's own process, without a GPU."""
        return _run_body(shell, cell)

    # Its annotations are those of a plain function; traitlets has made a bound one of it.
    register: Any = shell.register_magic_function
    register(gpu, "cell", "gpu")
    register(cpu, "cell", "cpu")


def _run_body(shell: InteractiveShell, cell: str) -> Any:
    """Runs `cell` in the person's namespace; the value of a last expression is the magic's, errors are the cell's."""
    transform: Any = shell.transform_cell
    tree = ast.parse(transform(cell))
    name = shell.compile.cache(cell, shell.execution_count)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)
    return None
