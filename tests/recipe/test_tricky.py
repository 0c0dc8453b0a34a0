"""Cells that are easily read wrongly, each with what it needs, imports or binds; kinds of the edge cases and more."""

from __future__ import annotations

import pytest

BOUND = "a = b = c = u = 1"
NEEDS = [
    # scopes
    ("class A:\n  x = a\n  class B:\n    y = x", "a x", "x = 2"),
    ("class A:\n  a = a", "a", ""),
    ("class A:\n  def f(self, v=a): return b\nA().f()", "a b", ""),
    ("class A:\n  n = 1\n  x = [n for _ in range(3)]", "n", "n = 2"),
    ("def f():\n  class K:\n    z = a\n    def m(self): return b\n  return K\nf()", "a b", ""),
    ("def f():\n  def g():\n    global a\n    a = b\n  g()\nf()", "b", ""),
    ("def f():\n  def g():\n    global a\n    a += b\n  g()\nf()", "a b", ""),
    ("def f():\n  for a in b: pass\n  return a\nf()", "b", ""),
    ("def f():\n  import a\n  return a\nf()", "", ""),
    ("def f():\n  def a(): return b\n  return a()\nf()", "b", ""),
    ("def f():\n  return locals()\nf()", "", ""),
    ("def f(a, b=a): return a\nf(1)", "a", ""),
    ("def f(*, a=b): return a", "b", ""),
    ("lambda a: a + b", "b", ""),
    ("(lambda a=b: a)()", "b", ""),
    # comprehensions and walrus
    ("x = {k: v for k, v in a for k in b}", "a b", ""),
    ("x = (a for a in b)", "b", ""),
    ("[y := a, y ** 2]", "a", "y = 1"),
    ("any((w := x) > 3 for x in a); print(w)", "a w", "w = 1"),
    ("def f(x=(y := a)): pass\nprint(y)", "a", "y = 1"),
    ("x = [y async for y in a if await b(y)]", "a b", "y = 1"),
    # try, loops, with
    ("try:\n  x = a\nfinally:\n  print(x)", "a x", "x = 1"),
    ("try:\n  x = a\nexcept ValueError:\n  pass\nprint(x)", "a x", "x = 1"),
    ("try:\n  pass\nexcept* ValueError as e:\n  a", "a", "e = 1"),
    ("if a:\n  b = 1\nelse:\n  raise ValueError\nprint(b)", "a", ""),
    ("for i in a: x = i\nprint(x)", "a x", "x = 1\ni = 2"),
    ("while a:\n  b\n  break\nelse:\n  c", "a b c", ""),
    ("with a as (x, y), b: print(x, y)", "a b", "x = y = 1"),
    ("async with a as z:\n  print(z)", "a", "z = 1"),
    # match: names that are bound, and the case that takes all
    ("match a:\n  case [x, *rest]: print(x, rest)\n  case {'k': b}: print(b)\n  case str() as s: print(s)", "a",
     "x = rest = s = 1"),
    ("match a:\n  case b.c: pass", "a b", ""),
    ("match a:\n  case {'x': 1, **kw}: print(kw)\n  case _ if b: pass", "a b", "kw = 1"),
    ("match a:\n  case _: x = 1\nprint(x)", "a", "x = 1"),
    ("match a:\n  case 1: x = 1\n  case other: x = 2\nprint(x)", "a", "x = 1"),
    ("match a:\n  case 1 | (_ as y): x = 1\nprint(x)", "a", "x = 1"),
    ("match a:\n  case _ if b: x = 1\nprint(x)", "a b x", "x = 1"),
    ("match a:\n  case int(): x = 1\nprint(x)", "a x", "x = 1"),
    # annotations, decorators, bases
    ("@a(b)\nclass C(c, metaclass=u): pass", "a b c u", ""),
    ("a: int\nprint(a)", "a", ""),
    ("a: int = 1\nprint(a)", "", ""),
    ("from __future__ import annotations\ndef f(x: a) -> b: ...", "", ""),
    # order
    ("x = 1\ndef f(): return x\nx = a\nf()", "a", "x = 1"),
    ("def f(): return x\nf()\nx = a", "a x", "x = 1"),
    ("def f(): return g()\ndef g(): return a\nf()", "a", ""),
    ("a, b = b, a", "a b", ""),
    ("print = a\nprint(b)", "a b", ""),
    ("try:\n  import foo as a\nexcept ImportError:\n  a = None\nprint(a)", "", ""),
    # magics
    ("%%timeit -n 1 -r 3 q = a\nq + b", "a b", "q = 1"),
    ("%time x = a + b", "a b", ""),
    ("!echo {a} $b ${c} {{u}}", "a b", ""),
    ("!echo {a['k']} {b:>3} {c!r}", "a b c", ""),
    ("for f in a:\n  !ls {f} $b", "a b", "f = 2"),
    ("def g():\n  !ls {a}\n  %time print(b)\ng()", "a b", ""),
    ("%env X={a}\n%set_env Y $b", "a b", ""),
    # options that take words, which are not known here
    ("%lprun -f b f(a)", "a b", ""),
    ("%prun -s cumulative -l 10 f(a)", "a", ""),
    ("%timeit --weird x f(a)", "a", ""),
    ("%%prun -s cumulative\nf(a)", "a", ""),
    ("%%html\n<b>{a}</b>", "", ""),
    ("%%writefile x.py\nprint(a)", "", ""),
    ("%snakeviz f(a)", "a", ""),
    ("%R -i a,b -o z x <- a", "a b", ""),
    ("%%sql db\nselect {a}, :b, '12:30', x::int, {{c}}", "a b c", "x = 1"),
    ("!for i in 1 2; do echo $i {a}; done", "a i", "i = 1"),
    ("!awk '{print $1}' {a.b} {b['k']} {c:03d}", "a b c", ""),
    # magics that cells have registered
    ("%mine", "a mine", "def mine(line): return a"),
    ("x = %mine c", "a c mine", "def mine(line): return a"),
    ("def f():\n  %mine\nf()", "a mine", "def mine(line): return a"),
    ("%%mine\nno Python (", "a mine", "def mine(line, cell): return a"),
    ("%%mine\nprint(c)", "a c mine", "def mine(line, cell): return a"),
    # the shell's methods
    ("get_ipython().run_cell('x = a')", "a", ""),
    ("get_ipython().run_cell_magic('time', '', 'print(a)')", "a", ""),
    ("ip.run_line_magic('time', 'print(a)')", "a ip", "ip = get_ipython()"),
    ("get_ipython().ev('a'); get_ipython().ex('x = b')", "a b", ""),
    ("get_ipython().run_cell(a)", "a b c u", ""),
    # other ways to call, prompts
    ("/f a", "a b f", "def f(x): return b"),
    (",f a b", "c f", "def f(x, y): return c"),
    (">>> x = a\n>>> print(b)", "a b", ""),
    # targets that are no names
    ("[0 for x.y in a]", "a x", "x = 1"),
    ("for x['k'] in a: pass", "a x", "x = {}"),
    ("with a as x.y: pass", "a x", "x = 1"),
    # texts and namespaces
    ("exec('def f(): return a\\nf()')", "a", ""),
    ("get_ipython().user_ns['a']", "a", ""),
    ("'a' in globals() and vars()['b']", "a b", ""),
    ("globals().setdefault('a', b)", "a b", ""),
    ("print(f'{(lambda q: q + a)(1)} {b!r:{c}} {u=}')", "a b c u", ""),
    # the whole namespace
    ("exec(f'{a}')", "a b c u", ""),
    ("%run script.py", "a b c u", ""),
    ("import __main__\n__main__.a", "a b c u", ""),
    ("globals().update(a=1)", "a b c u", ""),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "needs", "more"), NEEDS)
def test_tricky_cell_needs_exactly(ask, cell: str, needs: str, more: str) -> None:
    assert set(ask(cell, BOUND, more).state_names) == set(needs.split())


@pytest.mark.parametrize(
    ("cells", "imports"),
    [
        (["import a.b.c as x", "x.f()"], "a.b.c"),
        (["from a.b import c", "c()"], "a.b"),
        (["import importlib\nimportlib.import_module('a.b')"], "importlib a.b"),
        (["class K:\n  def m(self):\n    from q.r import s", "K()"], "q.r"),
        (["try:\n  import cupy as xp\nexcept ImportError:\n  import numpy as xp", "xp.zeros(3)"], "cupy numpy"),
        (["exec('import q')"], "q"),
        (["%pylab"], "numpy matplotlib.pyplot"),
        (["from . import q\nfrom .r import s"], ""),
        (["%%writefile pkg/__init__.py\nx = 1", "from pkg import x"], "pkg/__init__.py"),
        (["%%writefile ./pkg/sub.py\nx = 1", "import pkg.sub"], "pkg/sub.py"),
        (["%%writefile -a helper.py\nimport torch", "import helper", "helper.f()"], "helper.py"),
        (["%%file helper.py\nx = 1", "from helper import *"], "helper.py"),
    ],
)
def test_tricky_cell_imports_exactly(ask, cells: list[str], imports: str) -> None:
    *earlier, cell = cells
    recipe = ask(cell, *earlier).recipe
    assert {*recipe.imports, *recipe.file_dependencies} == set(imports.split())


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("x, (y, *z) = 1, (2, 3)", "x y z"),
        ("for i, (j, k) in []: pass", "i j k"),
        ("import os.path, sys as s\nfrom a import b as c, d", "os s c d"),
        ("try: pass\nexcept E as e: z = 1", "z"),
        ("match 1:\n  case {'k': v, **r}: pass", "v r"),
        ("x: int", ""),
        ("%%capture out\nn = 1", "out n"),
        ("n = !ls", "n"),
        ("%timeit n = 3", ""),
        ("%%timeit\nn = 3", ""),
        ("globals()['n'] = 1; vars()['m'] = 2; get_ipython().user_ns['k'] = 3", "n m k"),
        ("globals().setdefault('n', 1)", "n"),
        ("globals().update({'n': 1}, m=2)", "n m"),
        ("exec('n = 1')", "n"),
        ("setattr(a.x, 'y', 1)", "a"),
        ("delattr(a, 'y')", "a"),
        ("a[0] += 1", "a"),
        ("def f():\n  def g():\n    global n\n    n = 1\n  g()\nf()", "f n"),
    ],
)
def test_tricky_cell_may_change_exactly(ask, cell: str, names: str) -> None:
    assert set(ask(cell, BOUND).recipe.defines) == set(names.split())
