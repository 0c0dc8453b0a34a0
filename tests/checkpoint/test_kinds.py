"""Values of many kinds: what they are, what they share and what they do is the same in another process."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import pytest

KINDS = {
    "tensor dtypes and strides": (
        """
import torch
b = torch.arange(6, dtype=torch.bfloat16); c = torch.randn(3, dtype=torch.complex64).conj(); e = torch.ones(1).expand(5)
o = torch.arange(100.).as_strided((4, 4), (1, 1)); tr = torch.randn(300, 400).t(); z = torch.empty(0, 3); s0 = torch.tensor(3.5)
neg = c.imag; i8 = torch.ones(4, dtype=torch.uint8)[1:]; boolean = torch.tensor([True, False])
sums = [float(t.float().sum()) for t in (b, e, o, tr, neg)]; cv = c.clone(); before = (tr.stride(), e.stride(), o.stride())
""",
        "b.dtype is torch.bfloat16 and e.stride() == (0,) and e.untyped_storage().nbytes() == 4 and c.is_conj() and torch.equal(c, cv) and z.shape == (0, 3) "
        "and (tr.stride(), e.stride(), o.stride()) == before and sums == [float(t.float().sum()) for t in (b, e, o, tr, neg)] and s0.item() == 3.5 and neg.is_neg()",
    ),
    "tensor python side": (
        """
import torch
w = torch.nn.Parameter(torch.ones(3)); w.tag = {"a": w}; p = w.detach(); buf = torch.nn.Buffer(torch.ones(2)) if hasattr(torch.nn, "Buffer") else None
frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
class T(torch.Tensor):
    @property
    def double_sum(self): return float(self.sum()) * 2
sub = torch.ones(3).as_subclass(T); sub.note = "n"
with torch.inference_mode(): inf = torch.ones(2)
st = w.untyped_storage(); ts = torch.ones(4).storage()
""",
        "type(w) is torch.nn.Parameter and w.tag['a'] is w and w.requires_grad and p.data_ptr() == w.data_ptr() and not frozen.requires_grad and sub.double_sum == 6 "
        "and type(sub) is T and sub.note == 'n' and inf.is_inference() and st.data_ptr() == w.data_ptr() and list(ts) == [1.] * 4",
    ),
    "objects that pass on what they lack": (
        """
import sys
class Proxy:
    def __init__(self, inner): object.__setattr__(self, "inner", inner)
    def __getattr__(self, name): return getattr(self.inner, name)
    def __setattr__(self, name, value): setattr(self.inner, name, value)
class Slotted:
    __slots__ = ("inner", "empty", "__dict__")
    def __getattr__(self, name): return getattr(self.inner, name)
class Own(Proxy):
    def __getstate__(self): return [self.inner]
    def __setstate__(self, state): object.__setattr__(self, "inner", state[0])
class Items(dict):
    def __getattr__(self, name): return self[name]
class Thing: value = 1
thing = Thing(); p = Proxy(thing); q = Proxy(p); s = Slotted(); s.inner = thing; s.more = 3; o = Own(thing); d = Items(a=thing); d["self"] = d; out = Proxy(sys.stdout)
""",
        "p.value == q.value == s.value == o.value == 1 and p.inner is q.inner.inner is s.inner is o.inner is d.a is thing and s.more == 3 and not hasattr(s, 'empty') and d.self is d and list(d) == ['a', 'self'] "
        "and (setattr(p, 'value', 2), thing.value == 2)[1] and out.inner is sys.stdout",
    ),
    "context variables": (
        """
import contextvars
shared = [1]; a = contextvars.ContextVar("a", default=shared); b = contextvars.ContextVar("b"); b.set(shared); c = contextvars.ContextVar("c"); d = {"a": a}
""",
        "a.get() is shared and b.get() is shared and c.get(None) is None and (a.name, c.name) == ('a', 'c') and d['a'] is a and (a.set(2), a.get() == 2)[1]",
    ),
    "progress bars and methods of streams": (
        """
import io, sys
from tqdm import tqdm
class Stream(io.StringIO):
    def write(self, text): return len(text)
sys.stdout = Stream(); write = sys.stdout.write
page = io.StringIO(); done = tqdm([1, 2], file=page); list(done); live = tqdm(total=5, file=page); live.update(2); live.note = done
""",
        "write.__self__ is sys.stdout and write.__name__ == 'write' and done.disable and done.n == 2 and live.n == 2 and live.note is done and [bar.n for bar in tqdm._instances] == [2] and live in tqdm._instances and live.pos == 0 and (live.close(), len(tqdm._instances) == 0)[1]",
    ),
    "weak proxies": (
        """
import weakref
class A:
    def __call__(self): return self.n
    n = 1
a = A(); b = A(); p = weakref.proxy(a); holder = [weakref.proxy(b), p]; s = {1, 2}; q = weakref.proxy(s)
""",
        "p.__reduce_ex__.__self__ is a and (setattr(p, 'n', 5), a.n == 5 == p())[1] and holder[0].__reduce_ex__.__self__ is b and type(p) is weakref.CallableProxyType and type(q) is weakref.ProxyType and len(q) == 2",
    ),
    "exceptions": (
        """
import json, torch
class Wanted(ValueError):
    def __init__(self, wanted, found, *, hint=None): super().__init__(f"{wanted} {found}"); self.wanted, self.hint = wanted, hint
    def __setattr__(self, name, value):
        if "done" in vars(self) and not name.startswith("__"): raise TypeError("set by __init__ only")
        object.__setattr__(self, name, value)
class Slotted(KeyError):
    __slots__ = ("where", "empty")
class Pickled(Exception):
    def __init__(self, a, b): self.a, self.b = a, b
    def __reduce__(self): return Pickled, (1, 2)
class Group(ExceptionGroup):
    def __new__(cls, errors): return super().__new__(cls, "own group", errors)
    def derive(self, errors): return Group(errors)
big = torch.ones(100_000); w = Wanted((2, 3), 6, hint=big); vars(w)["done"] = True; w.add_note("n1"); s = Slotted("k"); s.where = big; p = Pickled(3, w)
def caught(code):
    try: exec(code, globals())
    except BaseException as error: return error
os_error, name, attribute, uni, syntax, imp, js, chained, hidden = map(caught, ("open('/none/x')", "nope", "big.nope", "bytes([255]).decode()", "1 +", "from os import nope", "json.loads('{')", "try: 1 / 0\\nexcept Exception as e: raise w from e", "try: 1 / 0\\nexcept Exception: raise KeyError(1) from None"))
ended, left = StopIteration(big), SystemExit(3); g = ExceptionGroup("g", [w, ExceptionGroup("inner", [s])]); own = Group([os_error]); s.__context__ = g; loop = ValueError(); loop.args = (loop,)
before = [(str(e), repr(e)) for e in (w, s, p, os_error, name, attribute, uni, syntax, imp, js, ended, left, g, own)]
""",
        "[(str(e), repr(e)) for e in (w, s, p, os_error, name, attribute, uni, syntax, imp, js, ended, left, g, own)] == before and w.hint is big and s.where is big and not hasattr(s, 'empty') and p.b is w and p.a == 3 "
        "and w.__notes__ == ['n1'] and (os_error.errno, os_error.filename, type(os_error)) == (2, '/none/x', FileNotFoundError) and name.name == 'nope' and attribute.obj is big and uni.start == 0 and syntax.lineno == 1 and imp.name == 'os' and js.pos == 1 "
        "and chained is w and type(w.__cause__) is ZeroDivisionError and w.__suppress_context__ and hidden.__suppress_context__ and type(hidden.__context__) is ZeroDivisionError and hidden.__cause__ is None and ended.value is big and left.code == 3 "
        "and g.exceptions[0] is w and g.exceptions[1].exceptions[0] is s and s.__context__ is g and own.exceptions[0] is os_error and type(own.derive([w])) is Group and loop.args[0] is loop and w.__traceback__ is None",
    ),
    "hooks": (
        """
import torch
log = []
w = torch.ones(2, requires_grad=True); net = torch.nn.Linear(2, 1, bias=False); net.weight.data.fill_(1)
w.register_hook(lambda g: log.append("hook") or g * 3); removed = w.register_hook(lambda g: log.append("removed"))
w.register_post_accumulate_grad_hook(lambda p: log.append(("after", p.grad.tolist())))
net.register_forward_pre_hook(lambda m, i, k: log.append("before"), with_kwargs=True); net.register_forward_hook(lambda m, i, o: log.append("forward"))
net.register_full_backward_hook(lambda m, i, o: log.append("backward")); net.register_state_dict_post_hook(lambda m, d, p, x: log.append("state"))
early = torch.ones(1, requires_grad=True); handle = early.register_hook(lambda g: g); handle.remove(); handle = early.register_hook(lambda g: g * 5)
""",
        "(removed.remove(), w.register_hook(lambda g: log.append('new')), net.register_forward_hook(lambda m, i, o: log.append('new forward')), net(w).backward(), net.state_dict(), "
        "log == ['before', 'forward', 'new forward', 'backward', 'hook', 'new', ('after', [3., 3.]), 'state'] or print(log))[-1] and (early.sum().backward(), early.grad.item() == 5)[1] "
        "and (handle.remove(), early.sum().backward(), early.grad.item() == 6)[2]",
    ),
    "parametrized modules": (
        """
import copy, torch
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
class Sym(torch.nn.Module):
    def forward(self, x): return x.triu() + x.triu(1).mT
class Own(torch.nn.Module):
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.rand(3, 3)); parametrize.register_parametrization(self, "w", Sym())
    def forward(self, x): return x @ self.w
own = Own(); lin = torch.nn.Linear(3, 3); parametrize.register_parametrization(lin, "weight", Sym()); twin = torch.nn.Linear(3, 3); parametrize.register_parametrization(twin, "weight", Sym())
wn = parametrizations.weight_norm(torch.nn.Linear(3, 2)); sn = parametrizations.spectral_norm(torch.nn.Linear(3, 3)); orth = parametrizations.orthogonal(torch.nn.Linear(3, 3))
old_wn = weight_norm(torch.nn.Linear(3, 2)); old_sn = spectral_norm(torch.nn.Linear(3, 3)); pr = prune.l1_unstructured(torch.nn.Linear(4, 4), "weight", amount=.5)
x = torch.rand(2, 3); nets = [own, lin, twin, wn, orth, old_wn]; want = [n(x).detach() for n in nets]; opt = torch.optim.SGD(lin.parameters(), lr=.1)
""",
        "all(torch.equal(n(x), w) for n, w in zip(nets, want)) and isinstance(own, Own) and type(own) is not Own and type(lin).__name__ == 'ParametrizedLinear' and type(lin) is not type(twin) and isinstance(lin, torch.nn.Linear) "
        "and (opt.zero_grad(), lin(x).sum().backward(), opt.step(), torch.equal(lin.weight, lin.weight.T) and not torch.equal(lin(x), want[1]))[-1] and type(copy.deepcopy(lin)) is type(lin) and sn(x).shape == old_sn(x).shape == (2, 3) "
        "and (pr(torch.rand(1, 4)), (pr.weight == 0).sum() == 8)[1] and (parametrize.remove_parametrizations(lin, 'weight'), type(lin) is torch.nn.Linear)[1] and (lambda cached: cached.__enter__() or (own.w is own.w, cached.__exit__(None, None, None))[0])(parametrize.cached())",
    ),
    "optimizers": (
        """
import torch
class Ahead(torch.optim.Optimizer):
    def __init__(self, inner, k): super().__init__(inner.param_groups, {"k": k}); self.inner = inner; self.count = 0; self.slow = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]
    def step(self, closure=None):
        self.inner.step(); self.count += 1
w = torch.nn.Parameter(torch.ones(3)); v = torch.nn.Parameter(torch.ones(2)); steps = []
def loss(): (w.square().sum() + v.sum()).backward(); return w.sum().detach()
lb = torch.optim.LBFGS([w, v], max_iter=2); lb.step(loss)
sgd = torch.optim.SGD([{"params": [w]}, {"params": [v], "lr": .5}], lr=.1, momentum=.9); sgd.note = [1]; note = sgd.note
sgd.register_step_post_hook(lambda o, a, k: steps.append(len(steps))); sched = torch.optim.lr_scheduler.ExponentialLR(sgd, .5)
ahead = Ahead(sgd, 3); loss(); ahead.step(); sched.step(); adam = torch.optim.Adam([w], amsgrad=True); adam.step()
def quiet(f):
    import warnings
    with warnings.catch_warnings(): warnings.simplefilter("error"); return f() or True
""",
        "(lb.zero_grad(), lb.step(loss))[1] is not None and lb._params[0] is w and sgd.note is note and ahead.inner is sgd and ahead.count == 1 and len(ahead.slow[0]) == 1 and ahead.param_groups[0]['params'][0] is w "
        "and steps == [0] and (sgd.step(), ahead.step(), steps == [0, 1, 2])[2] and ahead.count == 2 and quiet(sched.step) and abs(sgd.param_groups[1]['lr'] - .125) < 1e-9 and sched.optimizer is sgd "
        "and 'momentum_buffer' in sgd.state[w] and float(adam.state[w]['step']) == 1. and quiet(adam.step)",
    ),
    "gradient scalers": (
        """
import torch
def made():
    w = torch.nn.Parameter(torch.ones(2)); return w, torch.optim.SGD([w], lr=1.), torch.amp.GradScaler("cpu", init_scale=8., growth_interval=2)
off = torch.amp.GradScaler("cuda", enabled=False); new = made()[2]; w, opt, scaled = made(); scaled.scale(w.sum()).backward()
v, vopt, unscaled = made(); unscaled.scale(v.sum()).backward(); unscaled.unscale_(vopt)
u, uopt, stepped = made(); stepped.scale(u.sum() * float("inf")).backward(); stepped.step(uopt)
""",
        "off.get_scale() == 1. and off.state_dict() == {} and new.get_scale() == 8. and (scaled.step(opt), scaled.update(), w.tolist() == [0., 0.])[-1] and (unscaled.step(vopt), unscaled.update(), v.tolist() == [0., 0.])[-1] "
        "and (stepped.update(), u.tolist() == [1., 1.], stepped.get_scale() == 4.)[-1] and unscaled._growth_tracker.item() == 1 and unscaled.get_scale() == 8. and new._scale is None",
    ),
    "loaders with persistent workers": (
        """
import torch
from torch.utils.data import DataLoader
data = list(range(12)); torch.manual_seed(0); plain = DataLoader(data, 4, shuffle=True)
keeping = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True); half = DataLoader(data, 4, num_workers=1, persistent_workers=True)
first = [b.tolist() for b in keeping]; next(iter(half)); [b.tolist() for b in keeping]
state = torch.get_rng_state(); want = [[b.tolist() for b in keeping] for _ in range(2)]; torch.set_rng_state(state)
""",
        "[[b.tolist() for b in keeping] for _ in range(2)] == want and keeping.dataset is data is half.dataset and [b.tolist() for b in half] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] "
        "and all('Multi' in type(d._iterator).__name__ for d in (keeping, half)) and [len(b) for b in plain] == [4, 4, 4] and keeping.generator is None",
    ),
    "tensors of other layouts": (
        """
import torch
coo = torch.eye(3).to_sparse(); csr = torch.eye(3).to_sparse_csr(); meta = torch.empty(5, device="meta"); same = coo
""",
        "coo.layout is torch.sparse_coo and torch.equal(coo.to_dense(), torch.eye(3)) and torch.equal(csr.to_dense(), torch.eye(3)) and meta.shape == (5,) and same is coo",
    ),
    "arrays that share": (
        """
import numpy as np, torch
own = np.arange(5); a = np.arange(24.).reshape(4, 6); f = np.asfortranarray(a); fv = f[1:, ::2]; r = a[::-1, 1]; ro = a[1:]; ro.flags.writeable = False
big = np.zeros((300, 400)); tr = big.T; bv = tr[5]; st = np.lib.stride_tricks.as_strided(a, (3, 3), (8, 8)); bc = np.broadcast_to(a[0], (5, 6))
rec = np.zeros(3, dtype=[("x", "f8"), ("y", "i4")]); rx = rec["x"]; ba = bytearray(b"abcdefgh"); fb = np.frombuffer(ba, np.uint8); t = torch.from_numpy(big); t2 = torch.from_numpy(a[2])
z = np.empty((0, 5)); s = np.float32(2.5); dt = np.dtype("M8[ns]"); when = np.array(["2020-01-01"], "M8[D]"); txt = np.array(["ab", "c"]); per = np.empty((2, 3, 4)).transpose(1, 2, 0).copy("K"); pv = per[0]
""",
        "(a.__setitem__((0, 1), 77), r[3] == 77 and st[0, 1] == 77 and bc[4, 1] == 77 and bc.strides[0] == 0)[1] and (f.__setitem__((1, 0), 5), fv[0, 0] == 5 and fv.base is f and f.flags.f_contiguous)[1] "
        "and not ro.flags.writeable and (big.__setitem__((0, 5), 3), bv[0] == 3 and float(t[0, 5]) == 3 and tr.base is big)[1] and (rec.__setitem__('x', 4), rx[2] == 4)[1] "
        "and (ba.__setitem__(0, 65), fb[0] == 65)[1] and (a.__setitem__((2, 0), 9), float(t2[0]) == 9)[1] and z.shape == (0, 5) and type(s) is np.float32 and dt == 'M8[ns]' and str(when[0]) == '2020-01-01' "
        "and list(txt) == ['ab', 'c'] and (per.__setitem__((0, 0, 0), 6), pv[0, 0] == 6)[1] and own.flags.owndata and own.base is None",
    ),
    "arrays of objects and subclasses": (
        """
import numpy as np
l = [1]; o = np.array([l, None, {"l": l}, 4], dtype=object); ov = o[::2]; m = np.ma.masked_array([1., 2., 3.], mask=[0, 1, 0]); mv = m[1:]
class A(np.ndarray):
    pass
sub = np.arange(4).view(A); sub.info = "i"; mat = np.matrix([[1, 2]]); rc = np.rec.array([(1, 2.)], dtype=[("a", int), ("b", float)]); gen = np.random.default_rng(3); first = gen.random(); want = np.random.default_rng(3).random(2)[1]
""",
        "(ov.__setitem__(0, 'x'), o[0] == 'x' and ov[1]['l'] is l)[1] and m.sum() == 4 and type(m) is np.ma.MaskedArray and (m.data.__setitem__(2, 9), mv[1] == 9)[1] and type(sub) is A and sub.info == 'i' "
        "and mat.shape == (1, 2) and rc.b[0] == 2. and gen.random() == want",
    ),
    "frames": (
        """
import pandas as pd, numpy as np
tag = [1]; df = pd.DataFrame({"x": np.arange(20_000.), "s": ["a", "b"] * 10_000, "o": [tag] * 20_000, "t": pd.date_range("2020", periods=20_000), "c": pd.Categorical(["u", "v"] * 10_000)})
ser = df["x"]; idx = df.index; multi = df.set_index(["s", "x"]).head(); dtypes = df.dtypes; mean = df["x"].mean()
""",
        "df['o'].iloc[5] is tag and df['o'].iloc[9] is tag and df.dtypes.equals(dtypes) and df['x'].mean() == mean == ser.mean() and len(multi) == 5 and df['c'].cat.categories[1] == 'v' and np.shares_memory(df['x'].to_numpy(), df['x'].to_numpy())",
    ),
    "bytes": (
        "data = b'x' * (2 << 20); again = data; box = [data]; ba = bytearray(b'y' * (2 << 20)); bb = {'b': ba}; small = bytearray(b'z'); sm = [small]; mv = memoryview(small)",
        "data == b'x' * (2 << 20) and box[0] is data is again and bb['b'] is ba and len(ba) == 2 << 20 and (ba.append(1), len(bb['b']) == (2 << 20) + 1)[1] and sm[0] is small and (mv.__setitem__(0, 65), small == b'A')[1]",
    ),
    "classes": (
        """
import abc, functools, typing, dataclasses
seen = []
class Base:
    def __init_subclass__(cls, /, name, **kw): super().__init_subclass__(**kw); seen.append(name); cls.label = name
class Child(Base, name="c"):
    pass
class Meta(type):
    made = []
    def __new__(m, n, b, d): c = super().__new__(m, n, b, d); Meta.made.append(n); return c
    def __call__(cls, *a): return super().__call__(*a)
class WithMeta(metaclass=Meta):
    x = 1
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
class Sq(Shape):
    def area(self): return 4
class Dup: pass
Shape.register(Dup)
class Slots:
    __slots__ = ("a", "__b", "__weakref__")
    def __init__(self): self.a = 1; self.__b = 2
    @property
    def b(self): return self.__b
slot = Slots()
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
    @classmethod
    def of(cls, v): return cls(v)
    @staticmethod
    def two(): return 2
bx = Box[int](3)
class Attr(dict):
    def __init__(self, *a, **k): super().__init__(*a, **k); self.__dict__ = self
at = Attr(x=1)
class Desc:
    def __set_name__(self, o, n): self.name = n
    def __get__(self, i, o=None): return self.name
class Uses: field = Desc()
@functools.total_ordering
class Ord:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == o.n
    def __lt__(self, o): return self.n < o.n
    def __hash__(self): return hash(self.n)
od = {Ord(2): 1, Ord(1): 2}
@dataclasses.dataclass(frozen=True, slots=True)
class Fz:
    x: int
    y: tuple = ()
fz = Fz(1, (2,)); fset = {fz}
def local():
    class L:
        def me(self): return L
    return L
L = local(); li = L()
order = [k for k in vars(Box) if k not in ('__dict__', '__weakref__')]
""",
        "seen == ['c'] and Child.label == 'c' and Meta.made == ['WithMeta'] and WithMeta().x == 1 and type(WithMeta) is Meta and Sq().area() == 4 and isinstance(Dup(), Shape) and Shape.__abstractmethods__ == {'area'} "
        "and (slot.a, slot.b) == (1, 2) and not hasattr(slot, '__dict__') and bx.v == 3 and Box.of(1).v == 1 and Box.two() == 2 and Box[str] is not None and (setattr(at, 'x', 5), at['x'] == 5)[1] and Uses().field == 'field' "
        "and od[Ord(1)] == 2 and max(od).n == 2 and fz in fset and Fz(1, (2,)) in fset and dataclasses.replace(fz, x=3).x == 3 and li.me() is L and [k for k in vars(Box) if k in order] == order",
    ),
    "classes of typing": (
        """
import collections, enum, typing
from typing import Annotated, Generic, NamedTuple, Protocol, TypedDict, TypeVar, runtime_checkable
T = TypeVar("T"); K = TypeVar("K", bound=int)
class Point(NamedTuple):
    "A point."
    x: int
    y: list = []
    def norm(self): return abs(self.x)
class Pair(NamedTuple, Generic[T]):
    left: T
    right: T
class Named(Point):
    __slots__ = ()
    def double(self): return self._replace(x=2 * self.x)
Old = collections.namedtuple("Old", "a b", defaults=[5])
class Row(TypedDict, total=False):
    name: str
class Full(Row):
    size: Annotated[int, "bytes"]
class Sized(Generic[K]): pass
class Deep(Sized[K], Generic[K, T]): pass
@runtime_checkable
class Walks(Protocol):
    def walk(self): ...
class Duck(Walks):
    def walk(self): return 1
class Cmp(Protocol[T]): item: T
class Flag(enum.Flag): A = enum.auto(); B = enum.auto()
class Level(enum.IntEnum): LOW = 1
class Color(str, enum.Enum):
    RED = "r"
    @property
    def upper(self): return self.value.upper()
p = Point(3); q = Pair[int](1, 2); n = Named(4, p.y); row = Full(size=1); duck = Duck(); both = Flag.A | Flag.B; ints = Deep[bool, int]
""",
        "p == (3, []) and p.norm() == 3 and n.y is p.y and n.double() == (8, []) and type(n.double()) is Named and Point.__doc__ == 'A point.' and Point._fields == ('x', 'y') and Point._field_defaults == {'y': []} and Point(1).y is p.y "
        "and Point.__annotations__['x'] is int and type(p) is Point and q.right == 2 and Pair.__orig_bases__[0] is NamedTuple and Pair[str] is not None and Old(1) == (1, 5) and Point._make([1, 2]) == (1, 2) "
        "and row == {'size': 1} and Full.__required_keys__ == {'size'} and Full.__optional_keys__ == {'name'} and typing.is_typeddict(Full) and Deep.__parameters__ == (K, T) and ints.__args__ == (bool, int) "
        "and isinstance(duck, Walks) and not isinstance(3, Walks) and Cmp.__parameters__ == (T,) and both == Flag(3) and Flag.A in both and Level(1) is Level.LOW and Level.LOW + 1 == 2 and Color('r') is Color.RED and Color.RED.upper == 'R' "
        "and (lambda Again: Again(1)._asdict() == {'x': 1, 'y': [], 'z': 0})(collections.namedtuple('Again', [*Point._fields, 'z'], defaults=[p.y, 0]))",
    ),
    "abstract class stays abstract": (
        "import abc\nclass S(abc.ABC):\n    @abc.abstractmethod\n    def area(self): ...\ndef fails():\n    try: S()\n    except TypeError: return True",
        "fails()",
    ),
    "functions": (
        """
import functools, types, typing
calls = []
@functools.lru_cache(maxsize=None)
def fib(n): calls.append(n); return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(5)
UserId = typing.NewType("UserId", int)
def deco(f):
    @functools.wraps(f)
    def inner(*a, **k): return f(*a, **k) + offset
    return inner
offset = 1
@deco
def add(a, b=2, *, c=3): "doc"; return a + b + c
part = functools.partial(add, c=10)
class C:
    def __init__(self): self.n = 0
    def m(self): self.n += 1; return self.n
c = C(); bm = c.m; bl = [].append; gl = len
@functools.singledispatch
def sd(x): return "any"
@sd.register
def _int(x: int): return "int"
def gen(): yield offset
add.extra = c
code = compile("1 + 1", "<c>", "eval")
""",
        "fib(6) == 8 and UserId(3) == 3 and add(1) == 7 and (globals().__setitem__('offset', 2), add(1) == 8)[1] and add.__doc__ == 'doc' and add.__wrapped__.__name__ == 'add' and part(1) == 15 and bm() == 1 and c.n == 1 and bm.__self__ is c "
        "and (bl(3), bl.__self__ == [3])[1] and gl is len and sd(1) == 'int' and sd('') == 'any' and list(gen()) == [2] and add.extra is c and eval(code) == 2",
    ),
    "standard library": (
        """
import collections, decimal, datetime, pathlib, re, fractions, uuid, weakref, threading, queue, io, random, itertools, contextlib, types, sys, ipaddress
od = collections.OrderedDict(a=1); ct = collections.Counter("aab"); dd = collections.defaultdict(list, k=[1]); dq = collections.deque([1, 2], maxlen=3); cm = collections.ChainMap(od, {})
dec = decimal.Decimal("1.5"); dtm = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc); path = pathlib.Path("/a/b"); rx = re.compile("a+"); fr = fractions.Fraction(1, 3); uid = uuid.UUID(int=5)
class K: pass
k = K(); wv = weakref.WeakValueDictionary(k=k); wk = weakref.WeakKeyDictionary({k: 1}); ws = weakref.WeakSet([k]); cond = threading.Condition(); q = queue.Queue(); q.put(k); sio = io.StringIO("abc"); _ = sio.read(1); del _
rnd = random.Random(4); rnd.random(); want = random.Random(4); want.random(); it = iter([1, 2, 3]); next(it); sn = types.SimpleNamespace(a=k); out = sys.stdout; ip = ipaddress.ip_address("1.2.3.4")
try: raise ValueError("v", k)
except ValueError as e: err = e
sl = slice(1, 2); rg = range(3); el = ...; big = 10**50; cx = 1j; nan = float("nan")
""",
        "list(od) == ['a'] and ct['a'] == 2 and dd['z'] == [] and dq.maxlen == 3 and cm['a'] == 1 and cm.maps[0] is od and dec == decimal.Decimal('1.5') and dtm.year == 2020 and path.name == 'b' and rx.match('aa') and fr * 3 == 1 and uid.int == 5 "
        "and wv['k'] is k and wk[k] == 1 and k in ws and cond.acquire(False) and q.get() is k and sio.read() == 'bc' and rnd.random() == want.random() and next(it) == 2 and sn.a is k and out is sys.stdout and err.args[1] is k and sl == slice(1, 2) "
        "and el is ... and big == 10**50 and cx == 1j and nan != nan and str(ip) == '1.2.3.4'",
    ),
    "scikit-learn": (
        """
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
import numpy as np
X = np.random.rand(400, 5); y = (X[:, 0] > .5).astype(int)
pipe = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)).fit(X, y); pred = pipe.predict(X); scaler = pipe[0]; held = vars(scaler)
import sklearn; sklearn.set_config(transform_output="pandas")
""",
        "(pipe.predict(X) == pred).all() and vars(scaler) is held and sklearn.get_config()['transform_output'] == 'pandas'",
    ),
    "matplotlib": (
        "import matplotlib; matplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots(); line, = ax.plot([1, 2, 3])",
        "fig.axes[0] is ax and ax.lines[0] is line and line.get_ydata()[2] == 3",
    ),
    "modules": (
        "import os.path as osp, collections.abc, types\nmade = types.ModuleType('made'); made.x = [1]; held = made.x",
        "osp.join('a', 'b') == 'a/b' and collections.abc.Sized and made.x is held and made.__name__ == 'made'",
    ),
    "namespaces": ("import math\ng = globals(); x = 1; mv = vars(math); box = [g]", "g is globals() and g['x'] == 1 and mv is vars(math) and box[0] is g"),
}  # fmt: skip


# Processes of their own, or a large library.
SLOW = frozenset({"loaders with persistent workers", "scikit-learn"})


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in KINDS])
def test_kind_restored_in_another_process_is_the_same(process, kind):
    cells, expression = KINDS[kind]
    unsaved = process(f"cell({cells!r}); result = [[u.name, u.reason, u.path, u.detail] for u in save().unsaved]")
    assert unsaved == []
    result = process(f"""
restore_all()
report = save()
result = [report.dirty_regions, bool(check({expression!r}))]
""")
    assert result == [0, True]
