"""Kinds of values of numeric libraries that their own pickling changes: in another process they are what they were."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

import pytest

# name -> (cells, what must be true of the restored variables)
KINDS = {
    "class of a module that is loaded when asked for": ("import numpy as np\na = np.zeros(3, dtype=[('x', 'f4')]); q = a.view(np.recarray); r = q[0]", "type(q) is np.recarray and (a.__setitem__('x', 4), r.x == 4)[1]"),
    "hooks of every module and optimizer": ("import torch\nlog = []\nh = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: log.append(1))\nfrom torch.optim.optimizer import register_optimizer_step_post_hook as step_hook\nk = step_hook(lambda o, a, b: log.append(2))\nnet = torch.nn.Linear(1, 1); opt = torch.optim.SGD(net.parameters(), 0.1)", "(net(torch.ones(1, 1)).sum().backward(), opt.step(), h.remove(), k.remove(), net(torch.ones(1, 1)), opt.step())[-1] is None and log == [1, 2]"),
    "windows over arrays of objects": ("import numpy as np\na = np.array([[1], 'b', {'c': 1}, None], dtype=object); w = np.lib.stride_tricks.as_strided(a, (3, 2), (8, 8)); f = np.arange(9.); v = np.lib.stride_tricks.sliding_window_view(f, 3)", "(a.__setitem__(1, 'new'), w[0, 1] == w[1, 0] == 'new')[1] and (f.__setitem__(1, 50.), v[0, 1] == v[1, 0] == 50.)[1] and not v.flags.writeable"),
    "frames copy on write": ("import pandas as pd\ndf = pd.DataFrame({'a': [1., 2.], 'b': [3., 4.]}); s = df['a']; head = df[:1]; c = df.copy(deep=False); i = pd.Index([1, 2]); x = pd.Series(i); df.note = [s]; n = df.note", "(df.iloc.__setitem__((0, 0), 99.), s.iloc[0] == c.iloc[0, 0] == head.iloc[0, 0] == 1.)[1] and (s.iloc.__setitem__(1, 7.), df['a'].iloc[1] == 2.)[1] and (x.iloc.__setitem__(0, 5), i[0] == 1)[1] and df.note is n and n[0] is s"),
    "modules without weights yet": ("import torch, warnings\nwarnings.simplefilter('ignore')\nl = torch.nn.LazyLinear(4); p = torch.nn.UninitializedParameter(); m = torch.nn.Sequential(l); good = [1]", "type(p) is torch.nn.UninitializedParameter and m[0] is l and (l(torch.ones(1, 3)), type(l) is torch.nn.Linear and l.weight.shape == (4, 3))[1] and good == [1]"),
    "nested tensors": ("import torch, warnings\nwarnings.simplefilter('ignore')\nn = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]); j = torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 2)], layout=torch.jagged)", "[t.tolist() for t in n.unbind()] == [[1., 1.], [0., 0., 0.]] and [t.shape[0] for t in j.unbind()] == [2, 3]"),
    "gradient and hooks of sparse tensors": ("import torch\ns = torch.eye(2).to_sparse().requires_grad_(); s.register_hook(lambda g: g * 3); s.grad = torch.eye(2).to_sparse(); g = s.grad", "s.requires_grad and s.is_leaf and s.grad is g and (torch.sparse.sum(s).backward(), s.grad.to_dense()[0, 0] == 4)[1]"),
    "storage that was given up": ("import torch\na = torch.ones(10); a.untyped_storage().resize_(0); b = torch.ones(10); b.resize_(4); t = torch.ones(1); t.tag = 1; d = t.__dict__", "a.untyped_storage().nbytes() == 0 and a.shape == (10,) and b.untyped_storage().nbytes() == 40 and t.__dict__ is d"),
    "traced module and its graph": ("import torch\nfrom torch import fx\ndef act(x): return torch.relu(x) + bias\nbias = 1\nfx.wrap('act')\nclass M(torch.nn.Module):\n    def __init__(s): super().__init__(); s.l = torch.nn.Linear(2, 2)\n    def forward(s, x): return act(s.l(x))\nm = M(); g = fx.symbolic_trace(m); gr = g.graph", "g.graph is gr and gr.owning_module is g and torch.equal(g(torch.ones(1, 2)), m(torch.ones(1, 2))) and g.l.weight is m.l.weight and (gr.lint(), g.recompile())[1] is not None"),
    "no code of a tensor's class runs": ("import torch\nlog = []\nclass T(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, types, args=(), kwargs=None): log.append(f); return super().__torch_function__(f, types, args, kwargs or {})\nt = torch.ones(3).as_subclass(T); log.clear()", "log == [] and type(t + 1) is T and len(log) == 1"),
    "plain arrays over mapped files": ("import numpy as np, tempfile, os\np = os.path.join(tempfile.mkdtemp(), 'a.bin'); np.arange(1000.).tofile(p); m = np.memmap(p, float, 'r+'); a = np.asarray(m); b = a[10:20]; c = m[::2].view(np.ndarray)", "(m.__setitem__(10, -5), a[10] == -5 and b[0] == -5 and c[5] == -5)[1] and np.fromfile(p)[10] == -5 and type(a) is np.ndarray"),
    "arrays over arrays of numbers": ("import numpy as np, array\narr = array.array('d', [1, 2, 3]); n = np.frombuffer(arr); m = n[1:]", "(arr.__setitem__(1, 9.), n[1] == 9 and m[0] == 9)[1]"),
    "records and masks": ("import numpy as np\na = np.zeros(3, dtype=[('x', 'f4')]); r = a[1]; rr = a.view(np.recarray)[0]; mm = np.ma.masked; v = np.void(b'abc')\nclass Q(np.ndarray):\n    __slots__ = ('unit',)\nq = np.arange(3.).view(Q); q.unit = [1]; u = q.unit\nfrom numpy.polynomial import Polynomial\np = Polynomial([1, 2]); c = p.coef", "(a.__setitem__('x', 4), r['x'] == 4 and rr.x == 4)[1] and mm is np.ma.masked and v.tobytes() == b'abc' and q.unit is u and type(q) is Q and (c.__setitem__(0, 5), p(0) == 5)[1]"),
    "models of pydantic": ("import pydantic\nfrom typing import Generic, TypeVar\nT = TypeVar('T')\nclass M(pydantic.BaseModel, extra='allow'):\n    x: int\n    y: list[int] = pydantic.Field(default_factory=list)\n    _p: int = 4\n    @pydantic.field_validator('x')\n    @classmethod\n    def more(cls, v): return v + 1\n    @pydantic.computed_field\n    @property\n    def z(self) -> int: return self.x * 2\nclass G(pydantic.BaseModel, Generic[T]):\n    t: T\nclass Node(pydantic.BaseModel):\n    kids: list['Node'] = []\nclass Key(pydantic.BaseModel, frozen=True):\n    a: int\nm = M(x=1, other=5); m._p = 9; y = m.y; g = G[int](t=3); GI = G[int]; n = Node(kids=[Node()]); D = pydantic.create_model('D', a=(int, 3)); d = D(); keys = {Key(a=1)}", "(m.x, m.z, m._p, m.other) == (2, 4, 9, 5) and m.y is y and M(x='5').x == 6 and M.model_json_schema()['title'] == 'M' and type(g) is G[int] is GI and G[int](t=3) == g and n.model_dump() == {'kids': [{'kids': []}]} and type(n.kids[0]) is Node and d.a == 3 and Key(a=1) in keys"),
    "observers of traits": ("import traitlets\nclass H(traitlets.HasTraits):\n    a = traitlets.Int(3)\n    @traitlets.observe('a')\n    def seen(self, change): self.times = getattr(self, 'times', 0) + 1\nh = H(); log = []; h.observe(lambda change: log.append(change.new), 'a')", "(setattr(h, 'a', 7), log == [7] and h.times == 1)[1] and H().a == 3"),
    "attribute dicts of modules and optimizers": ("import torch\nm = torch.nn.Linear(2, 2); opt = torch.optim.SGD(m.parameters(), 0.1); md, od = vars(m), vars(opt)", "vars(m) is md and vars(opt) is od and (m(torch.ones(1, 2)).sum().backward(), opt.step())[1] is None and opt.param_groups[0]['params'][0] is m.weight"),
    "limits of number types": ("import torch\nf = torch.finfo(torch.float16); i = torch.iinfo(torch.int8)", "f.max == 65504 and i.max == 127"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_library_kind_is_the_same_in_another_process(process, name):
    cells, check = KINDS[name]
    assert process(f"cell({cells!r}); result = [u.name for u in save().unsaved]") == []
    result = process(f"report = restore_all(); result = [bool(check({check!r})), str(report.failed)]")
    assert result == [True, "()"]
