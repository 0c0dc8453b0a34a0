"""Ways to reach names that the text does not spell out, and the texts inside texts that do spell them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from looseleaf.recipe.magics import NAMESPACE_MAGICS, is_shell, magic_call

_SHELL_NAMESPACES = frozenset({"user_ns", "user_global_ns"})
# Methods of IPython's shell that run a text.
_SHELL_RUNS = frozenset({"run_cell", "run_cell_async", "run_code", "ex", "ev"})
_NAMESPACE_CALLS = frozenset({"globals", "locals", "vars"})
# These see the caller's own scope; inside a function that is not the session's namespace.
_SCOPE_CALLS = frozenset({"locals", "vars", "dir"})
_UNPICKLERS = frozenset(
    {
        "torch.load", "pickle.load", "pickle.loads", "joblib.load", "dill.load", "dill.loads", "cloudpickle.load",
        "cloudpickle.loads", "pd.read_pickle", "pandas.read_pickle",
    }
)  # fmt: skip
_QUERY_NAME = re.compile(r"@([A-Za-z_]\w*)")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, else the empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def root_name(node: ast.AST | None) -> str:
    """The name at the root of attributes, subscripts and method calls, such as `x` of `x.a[0].f()`; else empty."""
    while node is not None and not isinstance(node, ast.Name):
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return ""
    return node.id if node is not None else ""


def constant_text(node: ast.AST | None) -> str | None:
    """The string that `node` is, or None if it is not a constant string."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_namespace_call(node: ast.AST) -> bool:
    """`globals()`, `locals()` or `vars()` without arguments; `get_ipython().user_ns`."""
    if isinstance(node, ast.Attribute) and node.attr in _SHELL_NAMESPACES and isinstance(node.value, ast.Call):
        return dotted(node.value.func) == "get_ipython"
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _NAMESPACE_CALLS
        and not node.args
    )


def namespace_key(node: ast.AST) -> str | None:
    """`x` of `globals()["x"]`, `globals().get("x")` and `"x" in globals()`; None for anything else."""
    if isinstance(node, ast.Subscript) and is_namespace_call(node.value):
        return constant_text(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_namespace_call(node.func.value):
        if node.func.attr in ("get", "pop", "setdefault") and node.args:
            return constant_text(node.args[0])
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        known = node.comparators[0]
        if is_namespace_call(known) or (isinstance(known, ast.Call) and dotted(known.func) == "dir" and not known.args):
            return constant_text(node.left)
    return None


def updated_names(node: ast.Call) -> list[str]:
    """`a` and `b` of `globals().update({"a": 1}, b=2)`."""
    func = node.func
    if not isinstance(func, ast.Attribute) or func.attr != "update" or not is_namespace_call(func.value):
        return []
    keys = [key for arg in node.args if isinstance(arg, ast.Dict) for key in arg.keys]
    texts = (constant_text(key) for key in keys)
    return [text for text in (*texts, *(k.arg for k in node.keywords)) if text]


def dynamic_reason(node: ast.AST, *, in_code: bool) -> str:
    """How `node` reaches names that only running it can tell, empty if it does not; looks at `node` alone.

    `in_code`: it stands in a function's body, where `locals()` is the function's own.
    """
    if (
        isinstance(node, ast.Attribute)
        and node.attr in _SHELL_NAMESPACES
        and isinstance(node.value, ast.Call)
    ):
        return f"get_ipython().{node.attr}"
    if isinstance(node, ast.Subscript) and dotted(node.value) == "sys.modules":
        key = node.slice
        if constant_text(key) == "__main__" or (isinstance(key, ast.Name) and key.id == "__name__"):
            return "sys.modules['__main__']"
    if isinstance(node, (ast.Import, ast.ImportFrom)) and any(m == "__main__" for m in modules_of(node)):
        return "import __main__"
    if not isinstance(node, ast.Call):
        return ""
    magic = magic_call(node)
    if magic is not None:
        return f"%{magic.name}" if magic.name in NAMESPACE_MAGICS else ""
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SHELL_RUNS and is_shell(node.func.value):
        return f"get_ipython().{node.func.attr}()" if not node.args or constant_text(node.args[0]) is None else ""
    if not isinstance(node.func, ast.Name):
        return ""
    name = node.func.id
    if name in ("exec", "eval"):
        # With namespaces of its own it cannot reach the session's.
        if (
            len(node.args) > 1
            and not is_namespace_call(node.args[1])
            and isinstance(node.args[1], (ast.Dict, ast.Name))
        ):
            return ""
        return f"{name}()" if not node.args or constant_text(node.args[0]) is None else ""
    if name == "globals" or (name in _SCOPE_CALLS and not in_code and not node.args):
        return f"{name}()"
    return ""


def literal_programs(node: ast.Call) -> list[str]:
    """Texts that `node` runs as Python in the session's scope: `exec("...")`, `get_ipython().run_cell("...")`."""
    func = node.func
    runs = isinstance(func, ast.Attribute) and (
        (func.attr in _SHELL_RUNS and is_shell(func.value))
        or (func.attr == "run_cell" and isinstance(func.value, ast.Name))
    )
    if runs and node.args:
        text = constant_text(node.args[0])
        return [text] if text is not None else []
    if isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval") and node.args:
        text = constant_text(node.args[0])
        return [text] if text is not None else []
    return []


def query_names(node: ast.Call) -> Iterator[str]:
    """Names of the caller that `df.query("a > @limit")` and `pd.eval("x + y")` read from its frame."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("query", "eval", "evaluate") or not node.args:
        return
    text = constant_text(node.args[0])
    if text is None:
        return
    yield from _QUERY_NAME.findall(text)
    if dotted(node.func.value) in ("pd", "pandas", "ne", "numexpr"):
        yield from _WORD.findall(text)


def unpickles(node: ast.Call) -> bool:
    """The call may look up classes of the session by name."""
    return dotted(node.func) in _UNPICKLERS


def modules_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Absolute modules that an import statement loads; a relative import names a file beside the notebook: none."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


def imported_modules(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules of the import statements and constant `import_module` calls among `nodes`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(modules_of(node))
        elif (
            isinstance(node, ast.Call)
            and node.args
            and dotted(node.func) in ("__import__", "importlib.import_module", "import_module")
        ):
            text = constant_text(node.args[0])
            if text and not text.startswith("."):
                found.add(text)
    return found - {"__future__", "__main__"}
