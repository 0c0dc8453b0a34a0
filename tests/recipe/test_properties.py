"""What holds for any cell: nothing runs, the same answer twice, more facts never need less, no name is missed."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.kernel.live_facts import LiveFacts
from looseleaf.recipe import CellRun, ExecutionLog, NameFacts, derive_recipe
from looseleaf.recipe.analyze import forget_facts

NAMES = ["a", "b", "c", "d", "e"]
name = st.sampled_from(NAMES)

# Programs that run: every value is an int or a function of no arguments that returns one.
STATEMENTS = [
    "{0} = {1}",
    "{0} = {1} + {2}",
    "{0} += {1}",
    "if {0}:\n    {1} = {2}\nelse:\n    {1} = 3",
    "if {0}:\n    {1} = {2}",
    "for {0} in range(3):\n    {1} = {0} + {2}",
    "for {0} in []:\n    {1} = {2}",
    "while {0} > 10 ** 15:\n    {1} = {2}",
    "try:\n    {0} = {1}\n    raise ValueError\nexcept ValueError as {2}:\n    {0} = 1",
    "try:\n    {0} = {1} + {2}\nfinally:\n    {0} = 2",
    "{0} = sum([{1} for {1} in range(3) if {1} < {2}])",
    "{0} = sum([{1} for _ in range({2} % 3)])",
    "{0} = [{1} := v + {2} for v in range(2)][-1]",
    "def {f}():\n    return {1} + {2}",
    "def {f}():\n    global {1}\n    {1} += 1\n    return {2}",
    "def {f}():\n    def inner():\n        return {1}\n    return inner() + {2}",
    "{0} = {f}()",
    "{0} = (lambda {1}: {1} + {2})(1)",
    "{f} = lambda: {1}",
    "{0} = {f}() + {f}()",
    "{0} = list(map(lambda _: {f}(), [1]))[0]",
    "class K{f}:\n    {1} = {2}\n    w = {1}\n    def m(self):\n        return {1}",
    "{0} = K{f}().m()",
    "{0} = int(f'{{{1}}}') + {2}",
    "{0} = eval('{1} + {2}')",
    "{0} = globals()['{1}']",
    "del {0}",
    "if {0} > 10 ** 15:\n    del {1}",
    "with open('/dev/null') as {0}:\n    {1} = {2}\n{0} = 1",
    "match {0}:\n    case 1:\n        {1} = {2}\n    case {1}:\n        pass",
]
code = st.sampled_from(["f", "g"])
statement = st.builds(
    lambda text, x, y, z, f: text.format(x, y, z, f=f), st.sampled_from(STATEMENTS), name, name, name, code
)
program = st.lists(statement, min_size=1, max_size=6).map("\n".join)


class Recording(dict[str, object]):
    """A namespace that notes which of its first values are looked up; a value stored later is another object."""

    def __init__(self, values: dict[str, object]) -> None:
        super().__init__({key: _moved(value, self) for key, value in values.items()})
        self.first = dict(self)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if value is self.first.get(key):
            self.read.add(key)
        return value


def _moved(value: object, namespace: dict[str, object]) -> object:
    """A copy of `value` with `namespace` as the globals of its code, as a restore does it; shared with nobody."""
    if isinstance(value, types.FunctionType):
        return types.FunctionType(value.__code__, namespace, value.__name__, value.__defaults__, value.__closure__)
    if isinstance(value, type):
        parts = {k: _moved(v, namespace) for k, v in vars(value).items() if k not in ("__dict__", "__weakref__")}
        return type(value.__name__, value.__bases__, parts)
    # Small ints are one object each; these are not.
    return value + 10**12 if isinstance(value, int) else value


def run(source: str, namespace: dict[str, object]) -> bool:
    try:
        exec(compile(source, "<cell>", "exec"), namespace)
    except (NameError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        return False
    return True


@settings(max_examples=100)
@given(earlier=st.lists(program, max_size=3), target=program)
def test_every_session_name_that_a_run_reads_is_in_its_recipe(earlier: list[str], target: str) -> None:
    namespace: dict[str, object] = dict.fromkeys(NAMES, 1)
    log = ExecutionLog()
    log.record(CellRun(1, "c0", "a = b = c = d = e = 1", ok=True))
    for sequence, source in enumerate(earlier, start=2):
        log.record(CellRun(sequence, "c", source, ok=run(source, namespace)))
    headers = {key: NameFacts() for key in namespace if key != "__builtins__"}
    for known in (headers, None):
        recipe = derive_recipe(target, cell_id="t", log=log, headers=known, version=1)
        recording = Recording({k: v for k, v in namespace.items() if k != "__builtins__"})
        run(target, recording)
        missed = recording.read & headers.keys() - set(recipe.names)
        assert not missed, (missed, recipe.names)


@settings(max_examples=80)
@given(earlier=st.lists(program, max_size=3), target=program)
def test_recipe_is_deterministic_and_within_the_live_names(earlier: list[str], target: str) -> None:
    def once() -> tuple[object, ExecutionLog]:
        forget_facts()
        log = ExecutionLog()
        for sequence, source in enumerate(earlier, start=1):
            log.record(CellRun(sequence, "c", source, ok=True))
        return derive_recipe(target, cell_id="t", log=log, headers=None, version=1), log

    (first, log), (second, _) = once(), once()
    assert first == second
    assert set(first.names) <= set(log.definitions)  # type: ignore[attr-defined]


def globals_of(value: object, seen: set[int]) -> set[str]:
    """Global names in the bytecode of what `value` is or holds, nested code included; written apart from ours."""
    if id(value) in seen:
        return set()
    seen.add(id(value))
    found: set[str] = set()
    if isinstance(value, types.FunctionType):
        codes = [value.__code__]
        while codes:
            code = codes.pop()
            codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
            found |= {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        inside = [c.cell_contents for c in value.__closure__ or ()] + [value.__defaults__, value.__dict__]
    elif isinstance(value, functools.partial):
        inside = [value.func, *value.args]
    elif isinstance(value, types.MethodType):
        inside = [value.__func__, value.__self__]
    elif isinstance(value, type):
        inside = [v for base in value.__mro__ if base.__module__ == "__main__" for v in vars(base).values()]
    elif isinstance(value, (list, tuple)):
        inside = list(value)
    elif isinstance(value, dict):
        inside = list(value.values())
    else:
        inside = [type(value), getattr(value, "__dict__", None)] if type(value).__module__ == "__main__" else []
    for part in inside:
        found |= globals_of(part, seen)
    return found


HOLDERS = [
    "{0} = {f}",
    "{0} = [{f}, {1}]",
    "{0} = dict(k={f})",
    "{0} = functools.partial({f}, {1})",
    "{0} = functools.wraps({f})(lambda: {f}())",
    "class H{f}:\n    def m(self):\n        return {f}() + {1}\n{0} = H{f}()",
    "class H{f}:\n    def m(self):\n        return {f}() + {1}\n{0} = H{f}().m",
    "class S{f}(H{f}):\n    pass\n{0} = S{f}",
    "def deco(w):\n    def inner():\n        return w() + {1}\n    return inner\n@deco\ndef {f}():\n    return {2}",
    "{0} = [lambda: {1} for _ in range(2)]",
]
holder = st.builds(lambda text, x, y, z, f: text.format(x, y, z, f=f), st.sampled_from(HOLDERS), name, name, name, code)


@settings(max_examples=150)
@given(earlier=st.lists(st.one_of(holder, statement), min_size=1, max_size=8), target=name)
def test_every_global_of_the_code_in_a_closure_is_in_it_too(earlier: list[str], target: str) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    log = ExecutionLog()
    start = "import functools\na = b = c = d = e = 1\ndef f(): return a\ndef g(): return f()"
    for sequence, source in enumerate([start, *earlier], start=1):
        log.record(CellRun(sequence, "c", source, ok=run(source, namespace)))
    headers = LiveFacts(namespace, lambda key: key.startswith("__"), None, {})
    closure = set(derive_recipe(target, cell_id="t", log=log, headers=headers, version=1).names)
    assert target in closure or target not in headers
    for held in sorted(closure):
        missed = (globals_of(namespace[held], set()) & headers.keys()) - closure
        assert not missed, (held, missed)


facts = st.builds(
    NameFacts,
    global_names=st.frozensets(name, max_size=3),
    modules=st.frozensets(st.sampled_from(["torch", "numpy.linalg"]), max_size=2),
)


@settings(max_examples=80)
@given(st.dictionaries(name, facts), st.dictionaries(name, st.frozensets(name)), program, name)
def test_closure_grows_with_facts_and_reads(
    headers: dict[str, NameFacts], more: dict[str, frozenset[str]], target: str, extra: str
) -> None:
    def closure(source: str, known: dict[str, NameFacts]) -> set[str]:
        return set(derive_recipe(source, cell_id="", log=ExecutionLog(), headers=known, version=1).names)

    base = closure(target, headers)
    larger = {
        key: NameFacts(global_names=value.global_names | more.get(key, frozenset()), modules=value.modules)
        for key, value in headers.items()
    }
    assert base <= closure(target, larger)
    assert base <= closure(f"{extra}\n{target}", headers)


TEXT = st.text(alphabet=st.sampled_from("ab01 \n\t%!{}$?()[]:='\"#.,+@\\"), max_size=60)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(TEXT)
def test_any_text_has_a_recipe(text: str) -> None:
    log = ExecutionLog()
    log.record(CellRun(1, "c", "a = b = 1", ok=True))
    log.record(CellRun(2, "c", text, ok=True))
    recipe = derive_recipe(text, cell_id="", log=log, headers=None, version=0, editing=True)
    assert set(recipe.names) <= set(log.definitions)
    assert 0 <= recipe.confidence <= 1


def test_analysis_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "ran"
    source = "\n".join(
        [
            f"open({str(trace)!r}, 'w')",
            f"!touch {trace}",
            f"%time open({str(trace)!r}, 'w')",
            f"eval(\"open({str(trace)!r}, 'w')\")",
            f"class K:\n    x = open({str(trace)!r}, 'w')",
            "import antigravity_that_does_not_exist",
            "builtins.looseleaf_ran = True",
        ]
    )
    for magic in ("", "%%time\n", "%%capture out\n", "%%bash\n", "%%timeit\n"):
        log = ExecutionLog()
        log.record(CellRun(1, "c", magic + source, ok=True))
        derive_recipe(magic + source, cell_id="", log=log, headers=None, version=0)
    assert not trace.exists()
    assert not hasattr(builtins, "looseleaf_ran")
