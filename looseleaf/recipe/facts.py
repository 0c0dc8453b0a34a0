"""What one cell's text says, without running it: names read, bound and deleted, code defined, modules imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from looseleaf.dirty_tracker import hash128
from looseleaf.recipe.gpu_line import GpuLine

# Longer texts are not parsed; their recipe comes from a token scan. No notebook in the study came near.
SOURCE_CHARS_MAX = 400_000

BindingKind = Literal["value", "code", "import"]


def source_hash(source: str) -> str:
    """XXH3-128 of a cell's text in hex; recipes of one text compare by it."""
    return hash128(source.encode("utf-8", "surrogatepass")).hex()


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """A function, class or lambda that a cell defines.

    `reads`, `writes`: global names its body reaches, nested code included, whichever path runs.
    `imports`: modules that the body imports.
    `carries`: names whose objects the code holds after its definition (decorators, bases, defaults).
    `dynamic`: how the body reaches names that only running it can tell, empty if it does not.
    """

    name: str
    kind: Literal["function", "class", "lambda"]
    reads: frozenset[str]
    writes: frozenset[str]
    imports: frozenset[str]
    carries: frozenset[str]
    dynamic: str
    node: ast.AST = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """One name that the cell binds at top level; later ones of a cell stand later in `CellFacts.bindings`.

    `kind`: "code" for what is surely called by this name: a definition, or a lambda that is assigned as such.
    `certain`: every path of the cell that ends without an exception makes it.
    `module`, `attribute`: for an import, the module and what is taken from it (empty: the module itself).
    `submodule`: what `import a.b` loads although it binds `a`.
    `codes`: what a call of the bound object may run. `expr`: the expression bound, None if there is none.
    `order`: rises along the cell, over those that were bound again too.
    """

    name: str
    kind: BindingKind
    certain: bool
    module: str = ""
    attribute: str = ""
    submodule: str = ""
    codes: tuple[CodeFacts, ...] = ()
    expr: ast.expr | None = field(default=None, compare=False, repr=False)
    order: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Read:
    """A session name that the cell looks up. `after`: names that the cell itself has surely bound by then."""

    name: str
    after: frozenset[str]


@dataclass(frozen=True, slots=True)
class CellFacts:
    """What a cell's text says. All of it is about the session's namespace; scopes inside are resolved.

    `parsed`: the text is Python after IPython's transforms. If not, everything else is empty but magics and overrides.
    `reads`: one entry per name and set of names bound before it. `loads`: every name loaded at top level.
    `bindings`: in order. `superseded`: bound, then bound again or deleted; they stay if the cell fails between.
    `deletes`: session names that are gone afterwards; `may_delete`: on some path.
    `stored`: (name, expression) of what the cell puts into the objects of names.
    `touched`: names whose object the cell may change in place. `modules`: of import statements at top level.
    `star_imports`: modules whose names are not known here. `dynamic`: as in `CodeFacts`.
    `calls`: dotted names called at top level. `unpickles`: classes of the session may be looked up by name.
    `rebinds_all`: every name of the session may be another's afterwards.
    `shell`: lines and bodies that a shell runs. `files`: (path, text) written by `%%writefile`.
    `installs`: changes the environment; `only_installs`: it does nothing else. `future_annotations`: later cells'
    annotations are not evaluated.
    `forgets`: it empties the namespace, as `%reset -f` does.
    `too_deep`: the text is Python, but could not be followed; everything is more rather than too little.
    `codes`: of the bindings, by name.
    `tree`: the Python that runs, that of magic lines too, for the device walk.
    """

    source_hash: str
    parsed: bool
    reads: tuple[Read, ...] = ()
    loads: frozenset[str] = frozenset()
    bindings: tuple[Binding, ...] = ()
    superseded: tuple[Binding, ...] = ()
    deletes: frozenset[str] = frozenset()
    may_delete: frozenset[str] = frozenset()
    stored: tuple[tuple[str, ast.expr], ...] = field(default=(), compare=False, repr=False)
    touched: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    star_imports: tuple[str, ...] = ()
    calls: frozenset[str] = frozenset()
    dynamic: str = ""
    unpickles: bool = False
    rebinds_all: bool = False
    forgets: bool = False
    shell: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    installs: bool = False
    only_installs: bool = False
    future_annotations: bool = False
    override: str = ""
    gpu: GpuLine = GpuLine()
    too_deep: bool = False
    codes: Mapping[str, tuple[CodeFacts, ...]] = field(init=False, compare=False, repr=False)
    tree: ast.Module = field(default_factory=lambda: ast.Module(body=[], type_ignores=[]), compare=False, repr=False)

    @property
    def read_names(self) -> frozenset[str]:
        """Session names that the cell's own text looks up before binding them."""
        return frozenset(read.name for read in self.reads)

    @property
    def defines(self) -> frozenset[str]:
        """Session names that the cell binds other than by import."""
        return frozenset(b.name for b in self.bindings if b.kind != "import")

    @property
    def imports(self) -> frozenset[str]:
        """Names that the cell binds by import."""
        return frozenset(b.name for b in self.bindings if b.kind == "import")

    def __post_init__(self) -> None:
        codes: dict[str, tuple[CodeFacts, ...]] = {}
        for binding in self.bindings:
            if binding.codes or binding.name in codes:
                old = () if binding.certain else codes.get(binding.name, ())
                codes[binding.name] = (*old, *binding.codes)
        object.__setattr__(self, "codes", codes)

    def codes_of(self, name: str) -> tuple[CodeFacts, ...]:
        """What the cell itself binds `name` to, if that is code; all candidates after a conditional definition."""
        return self.codes.get(name, ())
