"""Snippet and exact facts; the numbered cases are those of other tools' bug trackers."""

from __future__ import annotations

import builtins

import pytest

from looseleaf.recipe import analyze_cell


def reads(source: str, *, future: bool = False) -> set[str]:
    facts = analyze_cell(source, future_annotations=future)
    assert facts.parsed, source
    return set(facts.read_names) - set(dir(builtins)) - {"get_ipython"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("y = x", {"x"}),
        ("x = 1; y = x", set()),
        # 1: comprehension scope
        ("z = [x for x in range(3)]", set()),
        ("[x for x in x]", {"x"}),
        ("[a for b in c for a in b if a > d]", {"c", "d"}),
        ("{k: v for k, v in pairs.items()}", {"pairs"}),
        # 2: class scope
        ("class K:\n A: int = 1\n B = A\n def f(self, a=A): return Q", set()),
        ("class K:\n A = A + 1", {"A"}),
        ("class K:\n A = 1\n B = [A for _ in r]", {"A", "r"}),
        ("class K:\n def f(self): return A\nK().f()", {"A"}),
        # 3: the exception's name
        ("try:\n  pass\nexcept E as e:\n  print(e)", {"E"}),
        ("try:\n  pass\nexcept E as e:\n  print(e)\nprint(e)", {"E", "e"}),
        # 4: annotations
        ("def f(x: B) -> C: pass", {"B", "C"}),
        ("def f(x: 'B'): pass", set()),
        ("def f():\n  x: B = 1\nf()", set()),
        ("x: B = 1", {"B"}),
        # 7, 8: imports
        ("from math import *\nsqrt(2)", {"sqrt"}),
        ("import os.path\nos.path.join('a')", set()),
        # 9: deletion needs the name, not the value
        ("del x\nprint(y)", {"y"}),
        ("x = 1\ndel x\nprint(x)", {"x"}),
        # 10: local in one function, global in another
        ("def f():\n  x = 1\ndef g():\n  return x\ng()", {"x"}),
        # 12: zero-argument super
        ("class P(Q):\n def __init__(self): super().__init__()\nP()", {"Q"}),
        # 14: passed, not called
        ("def f(): return a\nmap(f, xs)", {"a", "xs"}),
        ("def f(): return a", set()),
        # 17
        ("a = 0\nb = a + 1; a = 42", set()),
        ("b = a + 1; a = 42", {"a"}),
        # 18
        ("df.x[0] = 100\ndf.sort_values(inplace=True)", {"df"}),
        ("d[k] += v", {"d", "k", "v"}),
        # 19: lambdas
        ("h = lambda x: x + a", set()),
        ("h = lambda x: x + a\nh(1)", {"a"}),
        ("xs.sort(key=lambda v: w[v])", {"xs", "w"}),
        # 20
        ("if c: x.append(1)", {"c", "x"}),
        # 21: a declared global that is augmented is read
        ("def f():\n global cnt\n cnt += 1\nf()", {"cnt"}),
        # 22: magics
        ("!ls {p} $q", {"p", "q"}),
        ("!echo $$HOME", set()),
        ("files = !ls {d}", {"d"}),
        ("%timeit len(s)", {"s"}),
        ("%timeit -n 3 y = f(s)\nprint(y)", {"f", "s", "y"}),
        ("%time y = f(s)\nprint(y)", {"f", "s"}),
        ("%%timeit n = 3\nx = n + m", {"m"}),
        ("df.head?", {"df"}),
        ("%env A={a}", {"a"}),
        # 23, 24: loops
        ("for i in []: pass\nprint(i)", {"i"}),
        ("for i in xs: print(i)", {"xs"}),
        ("for k in r:\n  print(s); s = k", {"r", "s"}),
        ("while c:\n  x = 1\nprint(x)", {"c", "x"}),
        # branches
        ("if c: x = 1\nelse: x = 2\nprint(x)", {"c"}),
        ("if c: x = 1\nprint(x)", {"c", "x"}),
        ("if c: x = 1\nelse: raise E\nprint(x)", {"c", "E"}),
        ("try: x = 1\nexcept E: raise\nprint(x)", {"E"}),
        ("try: x = 1\nexcept E: pass\nprint(x)", {"E", "x"}),
        ("try: x = 1\nfinally: print(x)", {"x"}),
        ("with cm as h: x = h\nprint(x, h)", {"cm"}),
        ("with suppress(E): x = f()\nprint(x)", {"suppress", "E", "f", "x"}),
        ("match p:\n case [a, *r]: print(a, r)\n case K(x=1) | D.E: pass\n case {'k': v, **o}: v", {"p", "K", "D"}),
        # walrus
        ("if (n := f()) > 1: print(n)", {"f"}),
        ("[y for x in xs if (y := g(x))]", {"xs", "g"}),
        # f-strings
        ("f'{x:{w}.{p}f} {y!r}'", {"x", "w", "p", "y"}),
        # nested code
        ("def f():\n  def g(): return a\n  return g\nf()", {"a"}),
        ("def f(d=default): pass", {"default"}),
        ("@deco\ndef f(): pass", {"deco"}),
        # order: the cell's own binding comes first or later
        ("a = 1\ndef f(): return a\nf()", set()),
        ("def f(): return a\nf()\na = 1", {"a"}),
        # texts that run
        ("exec('y = x')\nprint(y)", {"x"}),
        ("eval('a + b')", {"a", "b"}),
        ("df.query('v > @limit')", {"df", "limit"}),
        ("globals()['k']", {"k"}),
        ("if 'm' in globals(): pass", {"m"}),
        ("async def f(): return await g(a)\nawait f()", {"g", "a"}),
    ],
)  # fmt: skip
def test_reads_of_snippet_are_exact(source: str, expected: set[str]) -> None:
    assert reads(source) == expected


def test_reads_with_future_annotations_skip_annotations() -> None:
    assert reads("def f(x: B): pass\ny: C = 1", future=True) == set()
    assert analyze_cell("from __future__ import annotations").future_annotations


def test_walrus_in_comprehension_is_a_define() -> None:
    facts = analyze_cell("r = [m := v for v in range(3)]")
    assert facts.defines == {"r", "m"}


@pytest.mark.parametrize(
    ("source", "defines", "imports", "deletes"),
    [
        ("x = y = 1", {"x", "y"}, set(), set()),
        ("a, (b, *c) = v", {"a", "b", "c"}, set(), set()),
        ("for i in r: pass", {"i"}, set(), set()),
        ("import a.b", set(), {"a"}, set()),
        ("import a.b as c, d", set(), {"c", "d"}, set()),
        ("from a import b as c", set(), {"c"}, set()),
        ("x = 1\ndel x", set(), set(), set()),
        ("del x", set(), set(), {"x"}),
        ("def f(): pass\nclass C: pass", {"f", "C"}, set(), set()),
        ("%%timeit\nx = 1", set(), set(), set()),
        ("%%capture out\nx = 1", {"out", "x"}, set(), set()),
        ("%time x = 1", {"x"}, set(), set()),
        ("%timeit x = 1", set(), set(), set()),
        ("globals()['k'] = 1", {"k"}, set(), set()),
        ("[i for i in r]", set(), set(), set()),
        ("import a\na = 1", {"a"}, set(), set()),
    ],
)
def test_bindings_of_snippet_are_exact(source: str, defines: set[str], imports: set[str], deletes: set[str]) -> None:
    facts = analyze_cell(source)
    assert (facts.defines, facts.imports, facts.deletes) == (defines, imports, deletes)


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("exec(s)", "exec()"),
        ("eval(s)", "eval()"),
        ("eval(s, {})", ""),
        ("globals()", "globals()"),
        ("locals()", "locals()"),
        ("vars()", "vars()"),
        ("vars(x)", ""),
        ("dir()", "dir()"),
        ("def f(): return locals()\nf()", ""),
        ("def f(): return globals()\nf()", "globals()"),
        ("def f(): return globals()", ""),
        ("def f(): return globals()['x']\nf()", ""),
        ("%run other.ipynb", "%run"),
        ("%whos", "%whos"),
        ("get_ipython().user_ns", "get_ipython().user_ns"),
        ("import __main__", "import __main__"),
        ("import sys\nsys.modules[__name__]", "sys.modules['__main__']"),
        ("model.eval()", ""),
    ],
)
def test_dynamic_access_is_noticed(source: str, how: str) -> None:
    assert analyze_cell(source).dynamic == how


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import a.b, c as d", {"a.b", "c"}),
        ("from a.b import c", {"a.b"}),
        ("from . import c", set()),
        ("try:\n import a\nexcept ImportError:\n import b", {"a", "b"}),
        ("import importlib\nimportlib.import_module('x.y')", {"importlib", "x.y"}),
        ("from __future__ import annotations", set()),
    ],
)
def test_modules_of_import_statements_keep_submodules(source: str, modules: set[str]) -> None:
    assert analyze_cell(source).modules == modules


def test_installs_are_noticed() -> None:
    for source in ("!pip install -q x", "%pip install x", "pip install x", "%%bash\nconda install x"):
        assert analyze_cell(source).installs, source
    assert not analyze_cell("!ls pip").installs


@pytest.mark.parametrize(
    "source", ["x = <YOUR CODE>", "def f(", "if x:", "print 'a'", "x = 1\x00", "(" * 300, "def f(a, a): pass"]
)
def test_unparseable_text_gives_no_error(source: str) -> None:
    assert not analyze_cell(source).parsed


def test_deep_expression_does_not_overflow() -> None:
    facts = analyze_cell("x = " + "+".join(["a"] * 5000))
    assert facts.parsed in (True, False)


def test_unknown_cell_magic_with_other_language_reads_only_what_may_have_registered_it() -> None:
    facts = analyze_cell("%%sparql\nSELECT ?x WHERE { }")
    assert facts.parsed
    assert facts.read_names == {"sparql"}
