# Every kind of Python object that people put tensors into, made on one side and used on the other.
# gpu-cells: 40
# %% setup
import abc
import collections
import dataclasses
import enum
import functools
import typing
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
torch.manual_seed(0)
# %% dataclass
@dataclass
class Config:
    lr: float = 0.1
    layers: list = field(default_factory=lambda: [4, 2])
    device: torch.device = torch.device("cuda")

@dataclass(frozen=True, order=True)
class Result:
    score: float
    name: str = field(compare=False)
    weights: torch.Tensor = field(compare=False, repr=False, default=None)

cfg = Config()
best = Result(0.5, "first", torch.ones(2, device=cfg.device))
cfg, best
# %% dataclass-here
dataclasses.replace(cfg, lr=1.0), dataclasses.asdict(Config(lr=2))["layers"], best < Result(0.7, "x")
# %% dataclass-gpu gpu
cfg.layers.append(1)
try:
    best.score = 1
except dataclasses.FrozenInstanceError as e:
    print(type(e).__name__, e)
best.weights.add_(1)
max(best, Result(0.9, "second"))
# %% dataclass-weights
best.weights, cfg.layers
# %% enum gpu
class Phase(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"
    @property
    def grad(self):
        return self is Phase.TRAIN

class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    AB = A | B

phase = Phase.TRAIN
by_phase = {Phase.TRAIN: torch.ones(1, device="cuda"), Phase.EVAL: torch.zeros(1, device="cuda")}
flags = Flag.A | Flag.B
phase, flags
# %% enum-here
phase is Phase.TRAIN, Phase("eval").grad, flags is Flag.AB, list(by_phase), Flag.A in flags
# %% enum-back gpu
by_phase[phase].item(), by_phase[Phase.EVAL].item(), phase.grad
# %% namedtuple
Point = collections.namedtuple("Point", "x y", defaults=[0])
class Batch(typing.NamedTuple):
    inputs: torch.Tensor
    size: int = 3
    def total(self):
        return self.inputs.sum().item()

batch = Batch(torch.arange(3.0, device="cuda"))
p = Point(1)
p, batch.total()
# %% namedtuple-gpu gpu
inputs, size = batch
batch = batch._replace(size=5)
p._asdict(), batch.size, isinstance(batch, tuple), type(batch).__name__, inputs is batch.inputs
# %% abc
class Layer(abc.ABC):
    registry = []
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        Layer.registry.append(cls.__name__)
    @abc.abstractmethod
    def __call__(self, x): ...

class Scale(Layer):
    def __init__(self, s): self.s = torch.tensor(float(s), device="cuda")
    def __call__(self, x): return x * self.s

layer = Scale(3)
layer(torch.ones(2, device="cuda"))
# %% abc-gpu gpu
class Shift(Layer):
    def __call__(self, x): return x + 1

try:
    Layer()
except TypeError as e:
    print(e)
Layer.registry, isinstance(layer, Layer), Shift()(torch.zeros(1, device="cuda"))
# %% abc-here
Layer.registry, issubclass(Shift, Layer), Shift.__mro__[1] is Layer
# %% descriptors
class Positive:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, obj, owner): return self if obj is None else getattr(obj, self.name)
    def __set__(self, obj, value):
        if value < 0:
            raise ValueError(f"{self.name[1:]} must not be negative")
        setattr(obj, self.name, value)

class Slotted:
    __slots__ = ("_rate", "state", "__weakref__")
    rate = Positive()
    def __init__(self, rate):
        self.rate = rate
        self.state = torch.full((2,), rate, device="cuda")

slotted = Slotted(0.5)
slotted.rate, slotted.state
# %% descriptors-gpu gpu
try:
    slotted.rate = -1
except ValueError as e:
    print(e)
slotted.rate = 2
hasattr(slotted, "__dict__"), slotted.rate, slotted.state.mul_(2)
# %% metaclass gpu
class Registry(type):
    known = {}
    def __new__(mcs, name, bases, ns, tag=None):
        cls = super().__new__(mcs, name, bases, ns)
        mcs.known[tag or name.lower()] = cls
        return cls
    def __init__(cls, name, bases, ns, tag=None):
        super().__init__(name, bases, ns)
    def __len__(cls):
        return len(cls.__name__)

class Linear(metaclass=Registry, tag="lin"):
    def __init__(self): self.w = torch.eye(2, device="cuda")
net = Registry.known["lin"]()
len(Linear), type(net).__name__
# %% metaclass-here
class Conv(Linear): pass
sorted(Registry.known), type(net) is Linear, len(Conv), isinstance(Conv, Registry)
# %% metaclass-back gpu
sorted(Registry.known), Registry.known["conv"]().w.trace().item()
# %% properties
class Model:
    def __init__(self):
        self.calls = 0
        self.w = torch.arange(4.0, device="cuda")
    @property
    def norm(self): return self.w.norm().item()
    @functools.cached_property
    def half(self):
        self.calls += 1
        return self.w / 2
    @classmethod
    def make(cls): return cls()
    @staticmethod
    def name(): return "model"
    def __getattr__(self, item):
        if item.startswith("dyn_"):
            return item[4:]
        raise AttributeError(item)

m = Model.make()
m.half, m.calls, round(m.norm, 3)
# %% properties-gpu gpu
m.half.add_(1)
m.half, m.calls, m.dyn_x, Model.name(), hasattr(m, "nope")
# %% bound
method = m.make
bound = m.__class__.norm.fget
part = functools.partial(torch.add, m.w, alpha=2)
part(m.w).sum().item(), bound(m) == m.norm
# %% bound-gpu gpu
part.args[0] is m.w, part(torch.ones(4, device="cuda")), method() is not m
# %% collections gpu
dq = collections.deque([m.w, m.half], maxlen=2)
od = collections.OrderedDict(b=m.w, a=1)
dd = collections.defaultdict(list)
dd["k"].append(m.w)
counter = collections.Counter("hello")
chain = collections.ChainMap({"x": m.w}, {"y": 2})
dq.append(m.w)
[t is m.w for t in dq], counter.most_common(1)
# %% collections-here
od.move_to_end("b")
list(od), dd["new"], dq.maxlen, chain["y"], chain["x"] is m.w, dq[0] is m.half, counter + collections.Counter("l")
# %% collections-back gpu
dd["k"][0] is m.w, list(od), od["b"] is m.w, sorted(dd)
# %% cycles gpu
class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []
        if parent is not None:
            parent.children.append(self)

root = Node(torch.zeros(1, device="cuda"))
leaf = Node(torch.ones(1, device="cuda"), Node(None, root))
ring = [root]
ring.append(ring)
leaf.parent.parent is root
# %% cycles-here
leaf.parent.parent is root, root.children[0].children[0] is leaf, ring[1] is ring, ring[0] is root
# %% weak gpu
ref = weakref.ref(root)
cache = weakref.WeakValueDictionary(root=root)
ref() is root, len(cache)
# %% weak-here
ref() is root, cache["root"] is root
# %% typing gpu
T = typing.TypeVar("T")
class Stack(typing.Generic[T]):
    items: list[T]
    def __init__(self): self.items = []
    def push(self, x: T):
        self.items.append(x)
        return self

@typing.runtime_checkable
class Sized(typing.Protocol):
    def size(self): ...

stack: Stack[torch.Tensor] = Stack()
stack.push(m.w).push(m.half)
isinstance(m.w, Sized), __annotations__
# %% typing-here
Stack[int].__args__, len(stack.items), stack.items[0] is m.w
# %% operators gpu
class Vec:
    def __init__(self, *xs): self.t = torch.tensor(xs, device="cuda", dtype=torch.float32)
    def __add__(self, o): return Vec(*(self.t + o.t).tolist())
    def __eq__(self, o): return torch.equal(self.t, o.t)
    def __hash__(self): return hash(tuple(self.t.tolist()))
    def __iter__(self): return iter(self.t.tolist())
    def __matmul__(self, o): return (self.t * o.t).sum().item()
    def __repr__(self): return f"Vec{tuple(self)}"
    def __bool__(self): return bool(self.t.any())
    def __contains__(self, x): return x in self.t.tolist()
    def __call__(self, k): return self.t[k].item()
v, w = Vec(1, 2), Vec(3, 4)
{v: "v", w: "w"}, v + w
# %% operators-here
table = {v: "v"}
table[Vec(1, 2)], v == Vec(1, 2), list(w), v @ w, 3.0 in w, w(0), bool(Vec(0, 0))
# %% context gpu
import contextlib
@contextlib.contextmanager
def scaled(t, k):
    t.mul_(k)
    try:
        yield t
    finally:
        t.div_(k)

class Recorder(contextlib.ExitStack):
    log = []
    def __exit__(self, *exc):
        self.log.append("closed")
        return super().__exit__(*exc)

with Recorder() as stack_:
    t = stack_.enter_context(scaled(m.w, 10))
    stack_.callback(Recorder.log.append, "callback")
    print(t.sum().item())
m.w.sum().item(), Recorder.log
# %% context-here
with contextlib.suppress(ZeroDivisionError), scaled(torch.ones(1), 3) as t3:
    print(t3)
    1 / 0
Recorder.log
# %% decorators
def counted(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return f(*args, **kwargs)
    wrapper.calls = 0
    return wrapper

@counted
def energy(t):
    """Sum of squares."""
    return t.pow(2).sum().item()

energy(m.w), energy.calls
# %% decorators-gpu gpu
energy(m.w), energy.calls, energy.__doc__, energy.__wrapped__.__name__
# %% decorators-here
energy.calls, energy(torch.ones(2)), energy.__name__
# %% singledispatch gpu
@functools.singledispatch
def describe(x): return f"object {type(x).__name__}"
@describe.register
def _(x: torch.Tensor): return f"tensor {tuple(x.shape)}"
@describe.register(list)
def _(x): return [describe(y) for y in x]
describe([1, m.w])
# %% singledispatch-here
describe([torch.ones(2, 2), "s"]), list(describe.registry)[0] is object
# %% match gpu
def route(x):
    match x:
        case Result(score=s, name=n) if s > 0.4: return f"good {n}"
        case {"w": torch.Tensor() as t}: return t.numel()
        case [first, *rest]: return len(rest)
        case _: return None
route(best), route({"w": m.w}), route([1, 2, 3]), route(5)
# %% namespace gpu
ns = SimpleNamespace(w=m.w, nested=SimpleNamespace(k=1))
ns.nested.k += 1
ns.nested
# %% namespace-here
ns.nested.k, ns.w is m.w, sorted(vars(ns.nested))
# %% walrus-global gpu
total = sum((last := i) for i in range(4))
last, total
# %% getstate
class Careful:
    def __init__(self): self.w, self.tmp = torch.ones(2, device="cuda"), (i for i in range(3))
    def __getstate__(self): return {"w": self.w}
    def __setstate__(self, s): self.__dict__.update(s, tmp=None)
careful = Careful()
careful.w
# %% getstate-here
careful.w.shape
# %% copies gpu
import copy
deep, shallow = copy.deepcopy(ns), copy.copy(ns)
deep.w is ns.w, shallow.w is ns.w, torch.equal(deep.w, ns.w)
