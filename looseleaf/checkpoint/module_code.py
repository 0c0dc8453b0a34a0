"""What a library's module was before session code touched it, by which one tells what a person set there (design §3).

Modules that are imported when a session begins in this process are taken down then. Of one that a cell imports and
patches, its own code tells what it sets, if it spells that out; else what it is at the first save.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from looseleaf.checkpoint.new_modules import NEW_MODULES

PLAIN: Final = frozenset({bool, int, float, str, type(None)})
# Modules whose code was read, and is remembered.
CODES_MAX: Final = 256
# Of a session's beginning: modules of at most this many dots are taken down, no private ones, and so many at most.
_DOTS_MAX: Final = 1
_MODULES_MAX: Final = 4096
# By these a module's code sets attributes whose names it does not spell out.
_BY_OTHER_WAYS: Final = frozenset({"globals", "vars", "locals", "setattr", "exec", "__dict__", "modules"})
_STAR: Final = frozenset({"IMPORT_STAR", "CALL_INTRINSIC_1"})
_STORE_GLOBAL: Final = dis.opmap["STORE_GLOBAL"]
_NOTHING: Final = object()


class OwnNames(NamedTuple):
    """`stored`: names that its own lines set. `constants`: those that it sets once, to a plain constant. `changing`:
    names that its functions set. `is_open`: it sets names that are not spelled out."""

    stored: frozenset[str]
    constants: dict[str, Any]
    changing: frozenset[str]
    is_open: bool


@lru_cache(maxsize=CODES_MAX)
def own_names(name: str) -> OwnNames | None:
    """What the code of the imported module says; None if it has none."""
    loader = getattr(vars(sys.modules[name]).get("__spec__"), "loader", None)
    try:
        code = loader.get_code(name)  # type: ignore[union-attr]
    except Exception:  # such as a loader without code, or a source that is gone by now
        code = None
    return None if code is None else _read(code)


def _read(code: types.CodeType) -> OwnNames:
    counts: dict[str, int] = {}
    constants: dict[str, Any] = {}
    is_open = False
    before = ""
    constant: Any = None
    for step in dis.get_instructions(code):
        is_open = is_open or step.opname in _STAR
        if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            counts[step.argval] = counts.get(step.argval, 0) + 1
            if before == "LOAD_CONST" and type(constant) in PLAIN:
                constants[step.argval] = constant
        before, constant = step.opname, step.argval
    texts: set[str] = set()
    changing: set[str] = set()
    for inner in _codes(code):
        texts.update(inner.co_names)
        if inner is not code and _STORE_GLOBAL in inner.co_code[::2]:
            changing.update(step.argval for step in dis.get_instructions(inner) if step.opname == "STORE_GLOBAL")
    constants = {name: value for name, value in constants.items() if counts[name] == 1 and name not in changing}
    return OwnNames(frozenset(counts), constants, frozenset(changing), is_open or bool(texts & _BY_OTHER_WAYS))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    todo = [code]
    while todo:
        current = todo.pop()
        yield current
        todo.extend(constant for constant in current.co_consts if isinstance(constant, types.CodeType))


class Baseline:
    """What modules were. One for each process; `begin` when a session comes to it."""

    def __init__(self) -> None:
        # Plain values as they are, of others the id.
        self._known: dict[str, dict[str, Any]] = {}
        # Names of modules that `begin` has met.
        self._met: set[str] = set()

    def begin(self) -> None:
        """Takes down the modules that are imported and not known yet."""
        fresh = [name for name in NEW_MODULES.names() if name not in self._met]
        self._met.update(fresh)
        for name in fresh:
            if len(self._known) >= _MODULES_MAX:
                return
            if name not in self._known and name.count(".") <= _DOTS_MAX and "._" not in "." + name:
                module = sys.modules.get(name)
                if type(module) is types.ModuleType:
                    self._known[name] = _marks(module)

    def set_by_others(self, name: str, module: types.ModuleType) -> list[tuple[str, bool]]:
        """(attribute, whether it is new) of those that neither the module's own code set nor its import."""
        known = self._known.get(name)
        if known is None:
            own = own_names(name)
            if own is None or own.is_open:
                self._known[name] = _marks(module)
                return []
            foreign = [one for one, value in _attributes(module) if _is_foreign(own, one, value)]
            return [(one, one not in own.constants) for one in foreign]
        now = _marks(module)
        changed = [(one, one not in known) for one, mark in now.items() if _differs(mark, known.get(one, _NOTHING))]
        own = own_names(name) if changed else None
        return [
            (one, is_new) for one, is_new in changed
            if own is None or not _is_its_own(own, one, vars(module).get(one), is_new=is_new)
        ]  # fmt: skip


def _marks(module: types.ModuleType) -> dict[str, Any]:
    # An id in a tuple equals no plain value.
    return {name: value if type(value) in PLAIN else (id(value),) for name, value in _attributes(module)}


def _attributes(module: types.ModuleType) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in list(vars(module).items()) if not name.startswith("__")]


def _differs(now: Any, before: Any) -> bool:
    return type(now) is not type(before) or (now != before and now == now)


def _is_foreign(own: OwnNames, attribute: str, value: Any) -> bool:
    if attribute in own.constants:
        return type(value) in PLAIN and _differs(value, own.constants[attribute])
    return attribute not in own.stored and attribute not in own.changing


def _is_its_own(own: OwnNames, attribute: str, value: Any, *, is_new: bool) -> bool:
    if attribute in own.changing or (attribute in own.stored and (is_new or attribute.startswith("_"))):
        return True
    # Such as one that it looks up when it is first asked for it.
    return own.is_open and is_new and type(value) not in PLAIN


BASELINE: Final = Baseline()
