"""The cases of the study of notebook state: each comes back right, or is refused by name; none is silently wrong."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import pytest

CASES = [
    ("tensor views", "import torch\nx = torch.zeros(1000); y = x[:10]", "(y.__setitem__(0, 5.), float(x[0]) == 5.)[1]"),
    ("numpy views", "import numpy as np\na = np.arange(10.); b = a[2:5]", "(b.__setitem__(0, -1), a[2] == -1 and b.base is a)[1]"),
    (
        "view inside an object",
        "import numpy as np\nclass Src: pass\nclass Mod:\n    def __init__(s):\n        s.p = np.zeros(4); s.src = Src(); "
        "s.src.amp = s.p[1:]\nm = Mod(); src = m.src",
        "(m.p.__setitem__(1, 3.), src.amp[0] == 3. and m.src is src)[1]",
    ),
    ("global rebinding", "x = 1\ndef inc():\n    global x\n    x += 1\n    return x", "inc() == 2 and x == 2"),
    ("global dict mutated", "FOO = {}\ndef put(v): FOO['k'] = v", "(put(3), FOO == {'k': 3})[1]"),
    ("one namespace", "def f():\n    global z\n    z = 5\ndef g():\n    f(); return z", "g() == 5 and z == 5"),
    (
        "function defined later",
        "def outer(): return inner()\ndef inner(): return 1",
        "(exec('def inner(): return 2', globals()), outer() == 2)[1]",
    ),
    (
        "enum of the session",
        "import enum\nclass Color(enum.Enum):\n    R = 1\n    G = 2\nc = Color.R\nd = {'g': Color.G}",
        "c is Color.R and Color(2) is Color.G is d['g'] and list(Color) == [Color.R, Color.G] and Color['R'] is c "
        "and repr(c) == '<Color.R: 1>'",
    ),
    (
        "rich enums",
        "import enum\nclass P(enum.Enum):\n    E = (1., 2.)\n    A = (1., 2.)\n    M = (3., 4.)\n    def __init__(s, m, r): s.m = m; s.r = r\n"
        "    @property\n    def q(s): return s.m / s.r\nclass S(str, enum.Enum):\n    X = 'x'\nclass F(enum.Flag):\n    A = enum.auto()\n    B = enum.auto()\n"
        "class I(enum.IntEnum):\n    ONE = 1\nfs = F.A | F.B; sx = S.X",
        "P.A is P.E and P.M.q == .75 and P((3., 4.)) is P.M and sx is S.X and sx == 'x' and S('x') is sx and fs == F.A | F.B "
        "and F.A in fs and I.ONE + 1 == 2 and I(1) is I.ONE and len(P) == 2",
    ),
    ("isinstance", "class A: pass\na = A()", "isinstance(a, A) and type(a) is A"),
    (
        "class redefined",
        "class Foo:\n    y = 1\n    def bar(s, x): return x + s.y\nold = Foo()\nclass Foo:\n    z = -1\n"
        "    def bar(s, x): return x * s.z\nnew = Foo()",
        "old.bar(1) == 2 and new.bar(3) == -3 and type(new) is Foo and type(old) is not Foo",
    ),
    (
        "class derived from its old self",
        "class D:\n    def a(s): return 1\nold = D()\nclass D(D):\n    def a(s): return super().a() + 1\nnew = D()",
        "new.a() == 2 and old.a() == 1 and isinstance(new, type(old)) and type(new) is D",
    ),
    ("class attribute changed", "class K:\n    n = 0\nk = K(); K.n = 7", "k.n == 7 and (setattr(K, 'n', 8), k.n == 8)[1]"),
    (
        "super",
        "class P:\n    def hi(s): return 'p'\nclass Q(P):\n    def hi(s): return super().hi() + 'q'\nq = Q()",
        "q.hi() == 'pq' and isinstance(q, P)",
    ),
    (
        "closure cell shared",
        "def mk():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n        return n\n    def get(): return n\n"
        "    return inc, get\ninc, get = mk()",
        "inc() == get() == 1",
    ),
    ("recursive local function", "def mk():\n    def fac(n): return 1 if n < 2 else n * fac(n - 1)\n    return fac\nfac = mk()", "fac(5) == 120"),
    ("leaf grad", "import torch\nw = torch.ones(3, requires_grad=True); (w * 2).sum().backward()", "w.grad.tolist() == [2.] * 3"),
    (
        "module hook",
        "import torch\ncalls = []\nnet = torch.nn.Linear(2, 2)\nh = net.register_forward_hook(lambda m, i, o: calls.append(1))",
        "(net(torch.ones(1, 2)), len(calls) == 1, h.remove(), net(torch.ones(1, 2)))[1] and len(calls) == 1",
    ),
    (
        "tensor hook",
        "import torch\nw = torch.ones(2, requires_grad=True)\nh = w.register_hook(lambda g: g * 10)",
        "((w * 1).sum().backward(), w.grad.tolist() == [10., 10.], h.remove(), (w * 1).sum().backward(), "
        "w.grad.tolist() == [11., 11.])[-1]",
    ),
    (
        "torch.Generator",
        "import torch\ng = torch.Generator().manual_seed(2); torch.rand(5, generator=g)\n_s = g.get_state(); "
        "want = torch.rand(3, generator=g).tolist(); g.set_state(_s); del _s",
        "torch.rand(3, generator=g).tolist() == want",
    ),
    (
        "global random states",
        "import torch, random, numpy as np\ntorch.manual_seed(1); random.seed(1); np.random.seed(1)\n"
        "want = (torch.rand(1).item(), random.random(), np.random.rand())\ntorch.manual_seed(1); random.seed(1); np.random.seed(1)",
        "(torch.rand(1).item(), random.random(), np.random.rand()) == want",
    ),
    ("weak reference", "import weakref\nclass N: pass\nn = N(); w = weakref.ref(n)", "w() is n"),
    (
        "deep linked list",
        "class N:\n    __slots__ = ('v', 'nx')\nhead = None\nfor i in range(20000):\n    t = N(); t.v = i; t.nx = head; head = t\ndel t",
        "head.v == 19999 and head.nx.nx.v == 19997 and not hasattr(head, '__dict__')",
    ),
    (
        "memmap",
        "import numpy as np, tempfile, os\npath = os.path.join(tempfile.mkdtemp(), 'm.bin')\n"
        "mm = np.memmap(path, np.float32, 'w+', shape=(1000,)); mm[3] = 4; part = mm[2:5]",
        "isinstance(mm, np.memmap) and mm.filename and mm[3] == 4 and (part.__setitem__(1, 7), mm[3] == 7)[1]",
    ),
    ("identity hash", "class K: pass\na = K(); seen = {a}; d = {a: 1}", "a in seen and d[a] == 1"),
    (
        "logger",
        "import logging\nlog = logging.getLogger('ps.case'); log.setLevel(10)\nclass H(logging.Handler):\n    def emit(s, r): got.append(r.msg)\n"
        "got = []; log.addHandler(H())",
        "log is logging.getLogger('ps.case') and log.level == 10 and (log.debug('x'), got == ['x'])[1]",
    ),
    ("monkey patch", "import math\ndef fake(x): return 42\nmath.sqrt = fake", "math.sqrt(4) == 42 and math.sqrt is fake"),
    (
        "cwd, environ, sys.path",
        "import os, sys, tempfile\nos.environ['PS_X'] = '1'; os.chdir('/'); sys.path.insert(0, '/ps/x')",
        "os.environ.get('PS_X') == '1' and os.getcwd() == '/' and sys.path[0] == '/ps/x'",
    ),
    ("default dtype", "import torch\ntorch.set_default_dtype(torch.float64)", "torch.zeros(1).dtype is torch.float64"),
]  # fmt: skip


SLOW_CASES = [
    (
        "compiled module",
        "import torch\nnet = torch.nn.Linear(2, 2)\ncm = torch.compile(net, backend='eager'); _ = cm(torch.ones(1, 2)); del _",
        "cm.weight is net.weight and cm(torch.ones(1, 2)).shape == (1, 2)",
    ),
]


@pytest.mark.parametrize(("cells", "expression"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_case_restored_in_another_process_is_right(process, cells, expression):
    _run_case(process, cells, expression)


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "expression"), [case[1:] for case in SLOW_CASES], ids=[case[0] for case in SLOW_CASES])
def test_slow_case_restored_in_another_process_is_right(process, cells, expression):
    _run_case(process, cells, expression)


def _run_case(process, cells, expression):
    unsaved = process(f"cell({cells!r}); result = [list(map(str, (u.name, u.reason, u.path, u.detail))) for u in save().unsaved]")
    assert unsaved == []
    assert process(f"restore_all(); result = bool(check({expression!r}))") is True
