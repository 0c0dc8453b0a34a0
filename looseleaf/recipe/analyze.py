"""From a cell's text to its facts; pure, deterministic, cached by text."""

from __future__ import annotations

import ast
import functools
from dataclasses import replace

from looseleaf.recipe.facts import SOURCE_CHARS_MAX, CellFacts, Read, source_hash
from looseleaf.recipe.flat import flat_facts
from looseleaf.recipe.magics import commands_of, is_install, magic_call, may_be_persons
from looseleaf.recipe.transform import Transformed, python_of, transform
from looseleaf.recipe.tree import UNPARSEABLE, without_warnings
from looseleaf.recipe.unfold import unfold
from looseleaf.recipe.visitor import CellVisitor

# Texts whose facts are kept: a few notebooks' worth.
FACTS_CACHE_CELLS_MAX = 2048


def analyze_cell(source: str, *, future_annotations: bool = False) -> CellFacts:
    """The facts of `source`. Executes nothing and never raises: a text that does not parse has `parsed` False.

    `future_annotations`: an earlier cell said `from __future__ import annotations`, which IPython keeps on.
    """
    return _analyze(source, future_annotations)


def forget_facts() -> None:
    """The next analysis of any text begins anew."""
    _analyze.cache_clear()


@functools.lru_cache(maxsize=FACTS_CACHE_CELLS_MAX)
def _analyze(source: str, future_annotations: bool) -> CellFacts:
    digest = source_hash(source)
    if len(source) > SOURCE_CHARS_MAX:
        return CellFacts(source_hash=digest, parsed=False)
    moved = transform(source)
    try:
        return _visited(digest, moved, future_annotations)
    except UNPARSEABLE as error:
        if moved.optional:
            # A magic of somebody else, with a language of its own.
            return _visited(digest, _without_body(moved), future_annotations)
        flat = None
        if isinstance(error, (RecursionError, MemoryError)):
            flat = flat_facts(digest, moved.python, future_annotations=future_annotations)
        if flat is not None:
            return replace(flat, override=moved.override, gpu=moved.gpu, shell=moved.shell)
        return CellFacts(
            source_hash=digest,
            parsed=False,
            override=moved.override,
            gpu=moved.gpu,
            shell=moved.shell,
            files=moved.files,
        )


def _without_body(moved: Transformed) -> Transformed:
    return Transformed(
        python="",
        override=moved.override,
        gpu=moved.gpu,
        reads=moved.reads,
        binds=moved.binds,
        magics=moved.magics,
    )


def _visited(digest: str, moved: Transformed, future_annotations: bool) -> CellFacts:
    with without_warnings(moved.python):
        tree = moved.tree or ast.parse(moved.python)
        visitor = CellVisitor(moved.python, future_annotations=future_annotations)
        for expression in moved.reads:
            visitor.nested(expression, isolated=True)
        setup = python_of(moved.setup) if moved.setup else ""
        if setup:
            visitor.nested(setup, isolated=False)
        persons = [name for name in moved.magics if may_be_persons(name)]
        for name in persons:
            visitor.use(name)
        visitor.run(tree)
        only_installs = _only_installs(tree, moved)
        unfold(tree, shown=moved.reads, setup=setup, called=persons)
    visitor.sure.clear()
    if moved.isolated:
        visitor.bindings.clear()
        visitor.superseded.clear()
        visitor.deletes.clear()
        visitor.may_delete.clear()
    for name in moved.binds:
        visitor.bind(name)
    return CellFacts(
        source_hash=digest,
        parsed=True,
        reads=tuple(Read(name, after) for name, after in visitor.reads),
        loads=frozenset(visitor.loads),
        bindings=tuple(visitor.bindings),
        superseded=tuple(visitor.superseded),
        deletes=frozenset(visitor.deletes),
        may_delete=frozenset(visitor.may_delete),
        stored=tuple(visitor.stored),
        touched=frozenset(visitor.touched),
        modules=frozenset(visitor.modules),
        star_imports=tuple(dict.fromkeys(visitor.star_imports)),
        calls=frozenset(visitor.calls),
        dynamic=visitor.dynamic,
        unpickles=visitor.unpickles,
        rebinds_all=visitor.rebinds_all,
        forgets=visitor.forgets,
        shell=(*moved.shell, *visitor.shell),
        files=moved.files,
        installs=visitor.installs or any(map(is_install, _commands(moved))),
        only_installs=only_installs,
        future_annotations=visitor.sets_future,
        override=moved.override,
        gpu=moved.gpu,
        tree=tree,
    )


def _commands(moved: Transformed) -> list[str]:
    """Of the bodies that a shell runs, comments left out."""
    lines = (line for body in moved.shell for line in body.splitlines() if not line.lstrip().startswith("#"))
    return [command for line in lines for command in commands_of(line)]


def _only_installs(tree: ast.Module, moved: Transformed) -> bool:
    commands = _commands(moved)
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        magic = magic_call(value) if isinstance(value, ast.Call) else None
        if magic is None or not magic.commands:
            return False
        commands += magic.commands
    return bool(commands) and all(map(is_install, commands))
