"""The session's runs in the order they happened, folded into the latest executed definition of each name.

A cell that was edited but not run again changes nothing here; a cell run out of document order counts when it ran.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from looseleaf.errors import PreconditionFailed
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.device_walk import DeviceWalk
from looseleaf.recipe.facts import Binding, BindingKind, CellFacts, CodeFacts
from looseleaf.recipe.history_line import FORGET_ALL
from looseleaf.recipe.lessons import Lessons, Observation
from looseleaf.recipe.outside import Background
from looseleaf.recipe.provenance import held_names, made_in, names_in
from looseleaf.recipe.tree import UNPARSEABLE
from looseleaf.recipe.values import UNKNOWN, Value, join

# Names whose definitions are kept; more are forgotten oldest first, which costs precision, never a failure.
DEFINITIONS_MAX = 20_000
# Texts of `%%writefile` cells that are kept by path, and the longest of them.
WRITTEN_FILES_MAX = 64
WRITTEN_FILE_CHARS_MAX = 100_000
# Files that tensors were saved to.
SAVED_FILES_MAX = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a cell. `sequence` counts from 1 without gaps; `ok`: it ended without an exception.

    `observed`: what the run showed of the device, if anybody looked.
    """

    sequence: int
    cell_id: str
    source: str
    ok: bool
    observed: Observation | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """What a session name was last bound to, by the text of the runs.

    `certain`: it surely happened. `codes`: notebook code that the object is or may run.
    `carries`: notebook functions and classes that the object may hold. `modules`: for an import, what provides it; for
    a value, packages that its expression used. `value`: what the device walk knows of it. `makes`: notebook code
    that the result of calling it may hold.
    """

    kind: BindingKind
    sequence: int
    certain: bool
    codes: tuple[CodeFacts, ...] = ()
    carries: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    value: Value = UNKNOWN
    makes: frozenset[str] = frozenset()

    @property
    def is_class(self) -> bool:
        """It may be a notebook class."""
        return any(code.kind == "class" for code in self.codes)


def _one_of(old: Definition, new: Definition) -> BindingKind:
    """The kind of a name that may have either definition."""
    kinds = {old.kind, new.kind}
    if "import" in kinds and old.sequence == new.sequence:
        # `try: import x` with `x = None` where it is missing.
        return "import"
    return "code" if "code" in kinds else "value" if "value" in kinds else "import"


class ExecutionLog:
    """Runs in sequence order; keeps definitions, not the runs themselves."""

    def __init__(self) -> None:
        self.length = 0
        self.future_annotations = False
        self.star_modules: list[str] = []
        self.written_files: dict[str, str] = {}
        self.saved_on_gpu: dict[str, bool] = {}
        self.default_gpu = False
        # Not of the state: a checkout of an older version forgets none.
        self.lessons = Lessons()
        self._definitions: dict[str, Definition] = {}

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """The latest executed definition of each live name."""
        return self._definitions

    def state_names(self) -> frozenset[str]:
        """Live names that no import binds."""
        return frozenset(name for name, d in self._definitions.items() if d.kind != "import")

    def record(self, run: CellRun) -> None:
        """Adds the next run; `FORGET_ALL` unbinds every name.

        A sequence already recorded is ignored; a gap raises PreconditionFailed `LOG_GAP`.
        """
        if run.sequence <= self.length:
            return
        if run.sequence != self.length + 1:
            raise PreconditionFailed(
                "LOG_GAP",
                f"Run {run.sequence} arrived where run {self.length + 1} is next; send the missing runs first.",
                next_sequence=self.length + 1,
            )
        self.length = run.sequence
        if run.observed is not None:
            self.lessons.observe(run.observed)
        if run.source == FORGET_ALL:
            self._definitions.clear()
            return
        facts = analyze_cell(run.source, future_annotations=self.future_annotations)
        if facts.parsed:
            self._fold(facts, run)
        for path, text in facts.files:
            self._keep_file(path, text)

    def background(
        self, uses_gpu: Callable[[], bool] = lambda: False, uses_framework: Callable[[], bool] = lambda: False
    ) -> Background:
        """What of the runs so far matters to a device walk besides names."""
        return Background(
            self.star_modules, uses_gpu, uses_framework, self.written_files, self.saved_on_gpu, self.default_gpu
        )

    def lookup(self, name: str) -> Value:
        """What the device walk may assume of a session name."""
        definition = self._definitions.get(name)
        return definition.value if definition is not None else UNKNOWN

    def _fold(self, facts: CellFacts, run: CellRun) -> None:
        walk = DeviceWalk(self.lookup, self.background())
        try:
            walk.run(facts.tree)
        except UNPARSEABLE:
            # Nested deeper than our recursion: the names still count.
            walk = DeviceWalk(self.lookup)
        if facts.forgets and run.ok:
            self._definitions.clear()
        changes = walk.changes
        self.default_gpu = walk.default_gpu
        for place, on_gpu in walk.saved.items():
            _keep(self.saved_on_gpu, place, on_gpu, SAVED_FILES_MAX)
        written = self._global_writes(facts)
        # In order: what a name was bound to first is behind what it is bound to last, as in `df = df.dropna()`; and a
        # cell that failed may have ended after any of them.
        for binding in sorted((*facts.superseded, *facts.bindings), key=lambda b: b.order):
            self._bind(binding, run, changes.get(binding.name, UNKNOWN))
        if run.ok:
            for name in {binding.name for binding in facts.superseded} - {binding.name for binding in facts.bindings}:
                self._definitions.pop(name, None)
        for name in written - facts.defines:
            self._put(name, Definition("value", run.sequence, certain=False, value=changes.get(name, UNKNOWN)))
        for name, expr in facts.stored:
            self._put_into(name, expr)
        bound = facts.defines | facts.imports | written
        for name in changes.keys() - bound:
            old = self._definitions.get(name)
            if old is not None and old.kind == "value":
                # Moved in place, such as `model.cuda()`.
                self._definitions[name] = replace(old, value=changes[name])
        if run.ok:
            for name in facts.deletes:
                self._definitions.pop(name, None)
        self.future_annotations = self.future_annotations or facts.future_annotations
        for module in facts.star_imports:
            if module and module not in self.star_modules:
                self.star_modules.append(module)

    def _bind(self, binding: Binding, run: CellRun, value: Value) -> None:
        certain = binding.certain and run.ok
        if binding.kind == "import":
            modules = frozenset({binding.module, binding.submodule}) - {""}
            old = self._definitions.get(binding.name)
            if old is not None and old.kind == "import" and not binding.attribute:
                # `import a.b` makes `a.b` usable wherever `a` is.
                modules |= {m for m in old.modules if m.partition(".")[0] == binding.module.partition(".")[0]}
            path = f"{binding.module}.{binding.attribute}" if binding.attribute else binding.module
            self._put(
                binding.name, Definition("import", run.sequence, certain, modules=modules, value=Value(path=path))
            )
            return
        definition = Definition(
            binding.kind,
            run.sequence,
            certain,
            codes=binding.codes,
            carries=self._carried(binding),
            modules=self._used_modules(binding),
            value=value,
            makes=frozenset().union(*(made_in(binding.name, code.node, self) for code in binding.codes)),
        )
        self._put(binding.name, definition)

    def _put(self, name: str, definition: Definition) -> None:
        old = self._definitions.pop(name, None)
        if old is not None and not definition.certain:
            definition = Definition(
                _one_of(old, definition),
                definition.sequence,
                old.certain,
                codes=(*definition.codes, *(c for c in old.codes if c not in definition.codes)),
                carries=definition.carries | old.carries,
                modules=definition.modules | old.modules,
                value=join(definition.value, old.value) if definition.value != UNKNOWN else old.value,
                makes=definition.makes | old.makes,
            )
        self._definitions[name] = definition
        if len(self._definitions) > DEFINITIONS_MAX:
            del self._definitions[next(iter(self._definitions))]

    def _carried(self, binding: Binding) -> frozenset[str]:
        names: set[str] = set()
        for code in binding.codes:
            names |= code.carries
        if binding.kind == "value":
            names |= held_names(binding.expr, self)
        carried = self._code_behind(names)
        return carried - {binding.name} if binding.kind == "code" else carried

    def _code_behind(self, names: Iterable[str]) -> frozenset[str]:
        """Names of the notebook code that the objects of `names` are or hold."""
        carried: set[str] = set()
        for name in names:
            held = self._definitions.get(name)
            if held is None or held.kind == "import":
                continue
            carried |= held.carries
            if held.codes:
                carried.add(name)
        return frozenset(carried)

    def _put_into(self, name: str, expr: ast.expr) -> None:
        """The object of `name` now holds the value of `expr` too."""
        old = self._definitions.get(name)
        if old is None or old.kind == "import":
            return
        carries = old.carries | (self._code_behind(held_names(expr, self)) - {name})
        modules = old.modules | self._modules_behind(expr)
        if carries != old.carries or modules != old.modules:
            self._definitions[name] = replace(old, carries=carries, modules=modules)

    def made_by(self, name: str) -> frozenset[str]:
        """Notebook code that the result of calling `name` may hold."""
        definition = self._definitions.get(name)
        return definition.makes if definition is not None else frozenset()

    def has_method(self, name: str, attr: str) -> bool:
        """`name` is an instance of a notebook class with a method `attr`."""
        definition = self._definitions.get(name)
        bodies = [c.node.body for c in definition.value.cls if isinstance(c.node, ast.ClassDef)] if definition else []
        return any(isinstance(n, ast.FunctionDef) and n.name == attr for body in bodies for n in body)

    def _used_modules(self, binding: Binding) -> frozenset[str]:
        """Packages that may be needed to load the value: of the expression's names, through code that it calls.

        Of code itself: those of its bases, decorators and defaults; what its body reads counts when it is used.
        """
        if binding.kind != "code":
            return self._modules_behind(binding.expr)
        held = (self._definitions.get(name) for code in binding.codes for name in code.carries)
        return frozenset().union(*(definition.modules for definition in held if definition is not None))

    def _modules_behind(self, expr: ast.expr | None) -> frozenset[str]:
        found: set[str] = set()
        seen: set[str] = set()
        todo = list(names_in(expr))
        while todo:
            name = todo.pop()
            definition = self._definitions.get(name)
            if name in seen or definition is None:
                continue
            seen.add(name)
            found |= definition.modules
            for code in definition.codes:
                found |= code.imports
                todo.extend(code.reads)
        return frozenset(found)

    def _global_writes(self, facts: CellFacts) -> frozenset[str]:
        """Names that functions reached from the cell declare global and bind."""
        written: set[str] = set()
        seen: set[str] = set()
        todo = list(facts.loads)
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            definition = self._definitions.get(name)
            for code in (*facts.codes_of(name), *(definition.codes if definition is not None else ())):
                written |= code.writes
                todo.extend(code.reads)
        return frozenset(written)

    def _keep_file(self, path: str, text: str) -> None:
        if path and len(text) <= WRITTEN_FILE_CHARS_MAX:
            _keep(self.written_files, path, text, WRITTEN_FILES_MAX)


def _keep(table: dict[str, T], key: str, value: T, entries_max: int) -> None:
    """Puts an entry last; the first goes if there are too many."""
    table.pop(key, None)
    table[key] = value
    if len(table) > entries_max:
        del table[next(iter(table))]
