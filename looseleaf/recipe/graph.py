"""From facts to the state closure: every session name that running the cell may look up, transitively."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from looseleaf.recipe.facts import CellFacts, CodeFacts
from looseleaf.recipe.results import RESULT_TABLES, all_results, results_read
from looseleaf.recipe.session_view import SessionView

_CODE_KINDS = frozenset({"function", "class"})


@dataclass(frozen=True, slots=True)
class Closure:
    """What a cell reaches by name.

    `state`: live names to restore. `imported`: live names that imports bind; they are bound again, not restored.
    `modules`: importable modules behind both. `writes`: globals that reached code may bind.
    `named`, `named_modules`: the part of `state` and `modules` that texts spell out; objects lead to the rest.
    `unresolved`: names looked up that are neither live nor bound by the cell (builtins, star imports, mistakes).
    `dynamic`: how the whole namespace is reached, empty if it is not.
    """

    state: frozenset[str]
    imported: frozenset[str]
    modules: frozenset[str]
    writes: frozenset[str]
    unresolved: frozenset[str]
    dynamic: str
    named: frozenset[str]
    named_modules: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """Everything that a worker must have bound before the cell runs."""
        return self.state | self.imported


class _Search:
    def __init__(self, facts: CellFacts, view: SessionView) -> None:
        self.facts = facts
        self.view = view
        self.needed: set[str] = set()
        self.modules: set[str] = set()
        self.object_modules: set[str] = set()
        self.writes: set[str] = set()
        self.unresolved: set[str] = set()
        self.dynamic = facts.dynamic
        self._seen: set[tuple[str, frozenset[str]]] = set()
        self._through_objects: list[tuple[str, frozenset[str]]] = []

    def reach_objects(self) -> None:
        """Follows what the objects reached so far hold, and what these hold."""
        while self._through_objects:
            todo, self._through_objects = self._through_objects, []
            self.reach(todo)

    def reach(self, roots: Iterable[tuple[str, frozenset[str]]]) -> None:
        """Follows names; the second of each pair: names that the cell has surely bound when the name is looked up."""
        todo = list(roots)
        while todo:
            name, bound = todo.pop()
            if (name, bound) in self._seen:
                continue
            self._seen.add((name, bound))
            if name not in self.view.live:
                self.unresolved.add(name)
                if name in RESULT_TABLES:
                    todo.extend((result, frozenset()) for result in all_results(self.view.live))
                continue
            self.needed.add(name)
            todo += self._lookups(self._edges(name), bound)
            self._through_objects += self._held(name, bound)

    def _lookups(self, names: Iterable[str], bound: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
        """`names` as the session is asked for them: what the cell has bound hides the session's."""
        found: list[tuple[str, frozenset[str]]] = []
        for name in names:
            if name not in bound:
                found.append((name, bound))
            else:
                # The cell's own code may still lead back.
                found.extend((used, bound) for used in self._own_code(name, bound))
        return found

    def code(self, codes: Iterable[CodeFacts]) -> set[str]:
        """Notes what `codes` do when they run; the names they read."""
        reads: set[str] = set()
        for code in codes:
            reads |= code.reads
            self.writes |= code.writes
            self.modules |= code.imports
            self.dynamic = self.dynamic or code.dynamic
        return reads

    def _edges(self, name: str) -> set[str]:
        """Names that using `name` may look up, by its text."""
        definition, recorded = self.view.definition(name), self.view.recorded(name)
        reads = self.code(definition.codes) if definition is not None and definition.kind != "value" else set()
        if recorded is not None:
            self.object_modules |= recorded.modules
            if recorded.kind in _CODE_KINDS:
                reads |= recorded.global_names
        if definition is not None and definition.kind == "import":
            self.modules |= definition.modules
        elif definition is not None and recorded is None:
            self.object_modules |= definition.modules
        return reads - {name}

    def _held(self, name: str, bound: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
        """What the object of `name` leads to: by its header, else by the text that made it."""
        recorded = self.view.recorded(name)
        if recorded is not None:
            return self._lookups(recorded.global_names - {name}, bound)
        definition = self.view.definition(name)
        if definition is None:
            return []
        # Lambdas inside a value.
        inside = self.code(definition.codes) if definition.kind == "value" else set()
        return [*self._lookups(inside, bound), *((held, frozenset()) for held in definition.carries)]

    def _own_code(self, name: str, bound: frozenset[str]) -> set[str]:
        reached: set[str] = set()
        todo = [name]
        seen = {name}
        while todo:
            for used in self.code(self.facts.codes_of(todo.pop())):
                if used not in bound:
                    reached.add(used)
                elif used not in seen:
                    seen.add(used)
                    todo.append(used)
        return reached


def find_closure(facts: CellFacts, view: SessionView) -> Closure:
    """The closure of a cell in a session. More facts never make it smaller."""
    search = _Search(facts, view)
    tables = RESULT_TABLES - view.live
    search.reach((read.name, read.after) for read in facts.reads if read.name not in tables)
    if facts.read_names & tables:
        search.reach((name, frozenset()) for name in results_read(facts.tree, tables, view.live))
    for name in facts.loads:
        search.code(facts.codes_of(name))
    if facts.unpickles:
        # A pickle names classes of the session by their names only.
        classes = [n for n, d in view.log.definitions.items() if d.is_class and n in view.live]
        search.reach((name, frozenset()) for name in classes)
    named, named_modules = frozenset(search.needed), frozenset(search.modules)
    search.reach_objects()
    if search.dynamic:
        search.reach((name, frozenset()) for name in view.live)
        search.reach_objects()
    imported = frozenset(n for n in search.needed if view.is_import(n))
    return Closure(
        state=frozenset(search.needed) - imported,
        imported=imported,
        modules=frozenset(search.modules | search.object_modules),
        writes=frozenset(search.writes),
        unresolved=frozenset(search.unresolved),
        dynamic=search.dynamic,
        named=named - imported,
        named_modules=named_modules,
    )
