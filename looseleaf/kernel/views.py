"""Looking at variables whose values are not here, without loading them: inspection, completion, variable views.

What a front end or a person asks only to see is answered from the saved headers (design §3: Stubs).
"""

from __future__ import annotations

import ast
import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from IPython.core.oinspect import InfoDict, Inspector

from looseleaf.checkpoint.stub import Stub, class_of, header_of, is_stub, name_of, unsaved_of, viewing
from looseleaf.recipe.dynamic import dotted, is_namespace_call
from looseleaf.recipe.magics import HELP_MAGICS, magic_call
from looseleaf.recipe.transform import transform

# Longest docstring of a value's class that is shown for a value that is not here.
DOC_CHARS_MAX: Final = 4000
_TABLES: Final = frozenset({"who", "whos", "who_ls", "psearch"})
# What shows its arguments, and what only tells which names a namespace has.
_SHOWING: Final = frozenset({"print", "display", "pprint", "repr", "str"})
_COUNTING: Final = frozenset({"len", "list", "sorted", "set", "tuple"})

# Its own annotations leave most of it untyped.
_Base: Any = Inspector


class StubInspector(_Base):  # type: ignore[misc]
    """IPython's inspector, which tells of a stand-in what is known of the value."""

    def info(self, obj: Any, oname: str = "", info: Any = None, detail_level: int = 0) -> dict[str, Any]:
        """See Inspector.info."""
        if not is_stub(obj):
            found: dict[str, Any] = super().info(obj, oname, info, detail_level)
            return found
        header, unsaved = header_of(obj), unsaved_of(obj)
        blank = dict.fromkeys(InfoDict.__annotations__)
        return {
            **blank, "name": oname, "found": True, "isalias": False, "ismagic": False, "isclass": False,
            "namespace": "Interactive", "type_name": type(obj).__name__, "string_form": str(obj),
            "length": None if header is None or header.length is None else str(header.length),
            "docstring": _where(obj) if unsaved is None else unsaved.detail, "class_docstring": _class_doc(obj),
        }  # fmt: skip

    def _get_info(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        with viewing():
            return super()._get_info(obj, *args, **kwargs)

    def pdef(self, obj: Any, oname: str = "") -> None:
        """See Inspector.pdef."""
        print(obj) if is_stub(obj) else super().pdef(obj, oname)

    def pdoc(self, obj: Any, oname: str = "", formatter: Any = None) -> None:
        """See Inspector.pdoc."""
        print(obj) if is_stub(obj) else super().pdoc(obj, oname, formatter)

    def psource(self, obj: Any, oname: str = "") -> None:
        """See Inspector.psource."""
        print(obj) if is_stub(obj) else super().psource(obj, oname)

    def pfile(self, obj: Any, oname: str = "") -> None:
        """See Inspector.pfile."""
        print(obj) if is_stub(obj) else super().pfile(obj, oname)


def _where(stub: Stub) -> str:
    return f"Saved, not loaded here. A cell that names `{name_of(stub)}` loads it."


def _class_doc(stub: Stub) -> str | None:
    known = class_of(stub)
    text = inspect.getdoc(known) if known is not None else None
    return None if text is None else text[:DOC_CHARS_MAX]


def _attribute_of(obj: Any, name: str) -> Any:
    """An attribute for inspection: of a stand-in the one of the value's class, as `DataFrame.head` of `df.head`."""
    known = class_of(obj) if is_stub(obj) else None
    return getattr(obj if known is None else known, name)


def view_if(looks: bool) -> AbstractContextManager[None]:
    """`viewing()` if the request only looks."""
    return viewing() if looks else nullcontext()


class Views:
    """Part of the kernel: requests that only look. Before the kernel class among its bases."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        shell: Any = self.shell  # type: ignore[attr-defined]
        shell.inspector = StubInspector(
            theme_name=shell.colors, str_detail_level=shell.object_info_string_level, parent=shell
        )
        stock = shell._getattr_property
        shell._getattr_property = lambda obj, name: (_attribute_of if is_stub(obj) else stock)(obj, name)

    def do_complete(self, code: str, cursor_pos: Any) -> Any:
        """See IPythonKernel.do_complete."""
        with viewing():
            return super().do_complete(code, cursor_pos)  # type: ignore[misc]

    def do_inspect(self, *args: Any, **kwargs: Any) -> Any:
        """See IPythonKernel.do_inspect."""
        with viewing():
            return super().do_inspect(*args, **kwargs)  # type: ignore[misc]

    async def do_debug_request(self, msg: Any) -> Any:
        """See IPythonKernel.do_debug_request; the front end's view of variables asks here."""
        with viewing():
            return await super().do_debug_request(msg)  # type: ignore[misc]


def without_views(source: str) -> str:
    """`source` without what only looks at variables, such as `%whos`, `x?`, `sorted(globals())` and a last `locals()`.

    It needs no value. What is left reads what the cell needs; it is `source` itself if there is nothing of the kind.
    """
    if not any(word in source for word in ("?", "%", "who", "locals", "globals", "vars", "dir")):
        return source
    shape = transform(source)
    try:
        tree = ast.parse(shape.python)
    except (SyntaxError, ValueError, RecursionError):
        return source
    blinds = _Blinds()
    kept = [blinds.visit(node) for node in tree.body if not (isinstance(node, ast.Expr) and _is_view(node.value))]
    if len(kept) == len(tree.body) and not blinds.found:
        return source
    # An override stays the first line.
    overrides = [f"%%{name}" for name in shape.magics if name in ("gpu", "cpu")]
    return "\n".join([*overrides, *map(ast.unparse, kept)])


class _Blinds(ast.NodeTransformer):
    """Puts an object of which nothing is known where an expression only tells which names there are."""

    def __init__(self) -> None:
        self.found = False

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _is_of_names(node):
            self.found = True
            return ast.Call(ast.Name("object", ast.Load()), [], [])
        self.generic_visit(node)
        return node


def _is_of_names(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func)
    if name in _COUNTING and len(node.args) == 1:
        return is_namespace_call(node.args[0]) or _is_of_names(node.args[0])
    is_keys = isinstance(node.func, ast.Attribute) and node.func.attr == "keys" and is_namespace_call(node.func.value)
    return is_keys or (name == "dir" and not node.args)


def _is_view(node: ast.expr) -> bool:
    """Whether a statement that is `node` alone only shows variables."""
    if not isinstance(node, ast.Call):
        return False
    if (magic := magic_call(node)) is not None:
        return magic.name in _TABLES or magic.name in HELP_MAGICS
    if is_namespace_call(node) or _is_of_names(node):
        return True
    return dotted(node.func) in _SHOWING and bool(node.args) and all(_is_view(arg) for arg in node.args)
