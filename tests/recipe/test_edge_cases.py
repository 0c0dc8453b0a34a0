"""Cases from other notebook tools' bug trackers, each with its right answer, by text alone and with the live objects.

Names that are only there to be wrong if they are reached are bound too: `u` in most sessions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from looseleaf.kernel.live_facts import LiveFacts
from looseleaf.recipe import NameFacts, analyze


@dataclass(frozen=True)
class Case:
    """`session` cells, then `cell`: the names that it needs. `types`: more by text that objects lead to."""

    number: int
    session: tuple[str, ...]
    cell: str
    needs: str
    types: str = ""
    # A cell that cannot run without IPython or files: by text only.
    runs: bool = True


def case(number: int, *cells: str, needs: str = "", types: str = "", runs: bool = True) -> Any:
    *session, cell = cells
    return pytest.param(Case(number, tuple(session), cell, needs, types, runs), id=f"{number}-{cell[:40]!r}")


WRAPPING = "def deco(f):\n  def w(*a):\n    log.append(a)\n    return f(*a)\n  return w"
CASES = [
    # 1: a comprehension has its own scope, but for its first iterable
    case(1, "x = [1]", "z = [x for x in range(3)]"),
    case(1, "x = [1]", "[x for x in x]", needs="x"),
    case(1, "x = [1]", "{x: y for x in [1] for y in [x]}"),
    case(1, "x = [1]", "list(x for y in [1])", needs="x"),
    case(1, "x = y = [1]", "[[y for y in x] for x in [[1]]]"),
    # 2: class bodies run at once, methods later
    case(2, "A = 9", "class K:\n  A: int = 1\n  B = A\n  def f(self, a=A): return 1"),
    case(2, "A = 9", "class K:\n  A = 1\n  def f(self): return A\nK().f()", needs="A"),
    case(2, "A = 9", "class K:\n  A = A + 1", needs="A"),
    case(2, "A = 9", "class K:\n  def f(self): return A"),
    case(2, "A = [9]", "class K:\n  A = [1]\n  B = [A for _ in A]", needs="A"),
    case(2, "A = 9", "class K:\n  def f(self): return A", "K().f()", needs="A K"),
    # 3: the name of an exception
    case(3, "e = 5", "try:\n  pass\nexcept ValueError as e:\n  pass\nprint(e)", needs="e"),
    case(3, "e = 5", "try:\n  pass\nexcept ValueError as e:\n  print(e)"),
    case(3, "e = 5", "try:\n  raise ValueError\nexcept ValueError as e:\n  pass", "'e' in globals()", types="e"),
    # 4: annotations
    case(4, "class B: pass", "def f(x: B): pass", needs="B"),
    case(4, "class B: pass", "def f(x) -> B: pass", needs="B"),
    case(4, "class B: pass", "def f(x: 'B'): pass"),
    case(4, "class B: pass", "from __future__ import annotations", "def f(x: B): pass"),
    case(4, "class B: pass", "def f():\n  x: B = 1\nf()"),
    case(4, "class B: pass", "x: B = 1", needs="B"),
    # 5: a walrus leaks out of a comprehension
    case(5, "n = 0\nu = 1", "r = [m := v for v in range(3)]\nprint(m)"),
    case(5, "m = 0", "r = [m := v for v in []]\nprint(m)", needs="m"),
    case(5, "m = 0", "if (m := 3) > 2: print(m)"),
    # 7: star imports
    case(7, "from math import *", "sqrt(2)"),
    case(7, "from math import *", "sqrt = abs", "sqrt(2)", needs="sqrt"),
    # 8: submodules
    case(8, "import os.path", "os.path.join('a')"),
    case(8, "import os", "import os.path as p", "p.join('a')"),
    # 9: deletion needs a name, not its value
    case(9, "x = 1; y = 2", "del x; print(y)", needs="y"),
    case(9, "x = 1; y = 2", "x\ndel x", needs="x"),
    case(9, "x = 1; y = 2", "del x\nx = 3\nprint(x)"),
    case(9, "x = 1; y = 2", "del x, y"),
    case(9, "x = {'a': 1}; y = 'a'", "del x[y]", needs="x y"),
    # 10: one name in two functions
    case(10, "x = 1", "def f():\n  x = 2\n  return x\ndef g():\n  return x\ng()", needs="x"),
    case(10, "x = 1", "def f():\n  x = 2\n  return x\nf()"),
    case(10, "x = 1", "def f():\n  def g():\n    nonlocal y\n    y = x\n  y = 1\n  g()\nf()", needs="x"),
    # 11: what a decorator's wrapper reads
    case(11, "log = []", WRAPPING, "@deco\ndef g(): return 1", "g()", needs="g log", types="deco"),
    case(11, "log = []", WRAPPING, "def h(): return 1\ng = deco(h)", "g()", needs="g log", types="deco h"),
    case(11, "import functools\nk = 2", "@functools.lru_cache\ndef g(): return k", "g()", needs="g k"),
    case(11, "import functools\nk = 2", "def g(): return k\nc = functools.lru_cache(g)", "c()", needs="c k", types="g"),
    # 12: zero-argument super
    case(12, "class Q:\n  pass", "class P(Q):\n  def __init__(self): super().__init__()", "P()", needs="P", types="Q"),
    # 13: names that hide builtins
    case(13, "type = int; list = [1]", "print(type, len(list))", needs="list type"),
    case(13, "print = max", "def f(x): return print(x, 1)", "f(2)", needs="f print"),
    case(13, "u = 1", "print(len([1]))"),
    # 14: functions passed on, and called
    case(14, "a = 1\ndef f(x=0): return a", "f()", needs="a f"),
    case(14, "a = 1\ndef f(x=0): return a", "xs = [1]", "list(map(f, xs))", needs="a f xs"),
    case(14, "a = 1\ndef f(): return a\ndef g(): return f()", "g()", needs="a f g"),
    case(14, "a = 1\ndef f(n): return f(n - 1) if n else a", "f(3)", needs="a f"),
    # 15: functions in other objects
    case(15, "a = 1\ndef f(): return a", "g = f", "g()", needs="a g", types="f"),
    case(15, "import functools\na = 1\ndef f(x): return a", "g = functools.partial(f, 1)", "g()", needs="a g",
         types="f"),
    case(15, "a = 1\nclass C:\n  def m(self): return a", "b = C().m", "b()", needs="a b", types="C"),
    case(15, "a = 1\ndef f(): return a", "t = {'k': [f]}", "t['k'][0]()", needs="a t", types="f"),
    case(15, "a = 1\ndef f(): return a", "class H: pass\nh = H()\nh.f = f", "h.f()", needs="a h", types="f H"),
    case(15, "a = 1\ndef f(): return a", "fs = []\nfs.append(f)", "fs[0]()", needs="a fs", types="f"),
    case(15, "a = 1\nclass C:\n  def m(self): return a", "def make(): return C()\nc = make()", "c.m()", needs="a c",
         types="C"),
    # 16: aliases are one object
    case(16, "x = [1]", "y = x", "y.append(1)", needs="y"),
    # 17: the order of reads and binds
    case(17, "a = 0", "b = a + 1; a = 42", needs="a"),
    case(17, "a = 0", "a = 42; b = a + 1"),
    # 18: changes in place
    case(18, "class D: pass\ndf = D(); df.x = [1]", "df.x[0] = 100", needs="df", types="D"),
    case(18, "d = [2, 1]", "d.sort()", needs="d"),
    case(18, "d = {}\nk = 1", "d[k] = 1", needs="d k"),
    case(18, "n = 1", "n += 1", needs="n"),
    # 19: lambdas
    case(19, "a = 10; h = lambda x: x + a", "h(1)", needs="a h"),
    case(19, "a = 10", "h = lambda x: x + a"),
    case(19, "a = 10", "(lambda x: x + a)(1)", needs="a"),
    case(19, "a = 10", "sorted([1], key=lambda v: v + a)", needs="a"),
    case(19, "a = 10; hs = [lambda x: x + a]", "hs[0](1)", needs="a hs"),
    # 20: changes in a branch
    case(20, "c = True; x = []", "if c: x.append(1)", needs="c x"),
    case(20, "c = True; x = []", "if c: x = 1\nelse: x = 2\nprint(x)", needs="c"),
    case(20, "c = True; x = []", "if c: x = 1\nprint(x)", needs="c x"),
    case(20, "c = True; x = []", "x = 1 if c else 2\nprint(x)", needs="c"),
    # 21: declared globals
    case(21, "cnt = 0\ndef f():\n  global cnt\n  cnt += 1", "f()", needs="cnt f"),
    case(21, "cnt = 0\ndef f():\n  global cnt\n  cnt = 1", "f()", needs="f"),
    # 22: names in magics
    case(22, "p = 'a'; q = 'b'", "!ls {p} $q", needs="p q", runs=False),
    case(22, "s = 'a'", "%timeit len(s)", needs="s", runs=False),
    case(22, "s = 'a'", "%%timeit n = s\nlen(n)", needs="s", runs=False),
    case(22, "s = 'a'", "%%time\nprint(s)", needs="s", runs=False),
    case(22, "s = 'a'", "out = !echo {s[0]}\nprint(out)", needs="s", runs=False),
    case(22, "s = 'a'", "%%bash -s {s}\necho $1 $s", needs="s", runs=False),
    case(22, "s = 'a'", "%env A=$s", needs="s", runs=False),
    case(22, "s = 'a'", "%%mymagic s\nprint(s)", needs="s", runs=False),
    case(22, "s = 'a'", "%mymagic s", needs="s", runs=False),
    case(22, "s = 'a'", "s?", needs="s", runs=False),
    # 23: a loop may run no time
    case(23, "i = 7", "for i in []: pass\nprint(i)", needs="i"),
    case(23, "i = 7", "for i in [1]: print(i)"),
    case(23, "i = 7", "while False: i = 1\nprint(i)", needs="i"),
    # 24: read before bound in a loop
    case(24, "s = 1; r = [1]", "for k in r:\n  print(s)\n  s = k", needs="r s"),
    case(24, "s = 1; r = [1]", "for k in r:\n  s = k\n  print(s)", needs="r"),
    # 25: a class that takes the name of its base
    case(25, "class Dataset: pass", "class Dataset(Dataset): pass", needs="Dataset"),
    case(25, "from abc import ABC\nclass ABC(ABC): pass", "ABC()", needs="ABC"),
    # texts and namespaces
    case(26, "a = 1", "exec('b = a')", needs="a"),
    case(26, "a = 1", "globals()['a']", needs="a"),
    case(26, "a = 1", "f'{a:>{a}}'", needs="a"),
    # conditional definitions keep the older one
    case(27, "a = b = 1\ndef f(): return a", "if u:\n  def f(): return b", "f()", needs="a b f", runs=False),
    # the latest executed definition
    case(28, "a = b = 1", "def f(): return a", "def f(): return b", "f()", needs="b f"),
    # generators, async code, matches
    case(29, "a = 1", "def g():\n  yield a", "list(g())", needs="a g"),
    case(29, "a = 1", "match 3:\n  case int(a): print(a)"),
    case(29, "a = 1", "match 3:\n  case 4: a = 2\nprint(a)", needs="a"),
]  # fmt: skip


def state(cell: str, session: tuple[str, ...], headers: Mapping[str, NameFacts] | None, make_log: Any) -> set[str]:
    log = make_log(*session)
    return set(analyze(cell, cell_id="c", log=log, headers=headers, version=1).state_names)


@pytest.mark.parametrize("edge", CASES)
def test_edge_case_by_text(session, edge: Case) -> None:
    found = state(edge.cell, edge.session, None, session)
    needs, types = set(edge.needs.split()), set(edge.types.split())
    assert needs <= found <= needs | types


@pytest.mark.parametrize("edge", [c for c in CASES if c.values[0].runs])
def test_edge_case_with_live_objects(session, edge: Case) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for source in edge.session:
        flags = 0x1000000 if source.startswith("from __future__") else 0
        exec(compile(source, "<cell>", "exec", flags), namespace)
    headers = LiveFacts(namespace, lambda name: name.startswith("__"), None, {})
    found = state(edge.cell, edge.session, headers, session)
    needs, types = set(edge.needs.split()), set(edge.types.split())
    assert needs <= found <= needs | types


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_edge_case_type_parameters_are_no_reads(session) -> None:
    assert state("def f[T](x: T) -> T: return x", ("T = 1",), None, session) == set()
