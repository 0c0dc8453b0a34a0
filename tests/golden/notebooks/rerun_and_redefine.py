# Cells run again, out of order, after edits: redefinitions, counters, stale closures, deleted names, earlier results.
# gpu-cells: 37
# %% setup
import torch
torch.manual_seed(0)
counter = 0
w = torch.zeros(3, device="cuda")
# %% step
counter += 1
w += counter
w
# %% step-2 from=step
# %% step-3 from=step
# %% last-result
_
# %% last-result-gpu gpu
_ * 2
# %% two-back gpu
print(__ is w, _)
_ + __
# %% out-numbered gpu
Out[2] is w, _2 is w, sorted(Out)
# %% in-texts gpu
print(In[2])
print(len(In), _i[:12], repr(_ii[:5]))
_i2
# %% ih-oh gpu
_ih[1][:12], list(_oh)[:3], _oh[2] is Out[2]
# %% changed-through-out gpu
Out[2].zero_()
w
# %% w-after
w, _2
# %% def-f
def scale(t):
    return t * 10
def use(t):
    return scale(t) + 1
result = use(w + 1)
result
# %% redef-f gpu
def scale(t):
    return t * 100
use(w + 1)
# %% use-after
use(torch.ones(1))
# %% class-1 gpu
class Model:
    version = 1
    def __init__(self):
        self.w = torch.ones(2, device="cuda")
    def forward(self):
        return self.w.sum().item() * self.version
m1 = Model()
m1.forward()
# %% class-2
class Model:
    version = 20
    def __init__(self):
        self.w = torch.ones(2, device="cuda")
    def forward(self):
        return self.w.sum().item() * self.version + 0.5
m2 = Model()
# %% both gpu
m1.forward(), m2.forward(), isinstance(m1, Model), type(m1).__name__ == type(m2).__name__, type(m1) is type(m2)
# %% patch-class gpu
Model.extra = lambda self: ("extra", self.version)
m2.extra(), hasattr(m1, "extra")
# %% patch-later
m2.extra(), Model().extra()
# %% adopt gpu
m1.__class__ = Model
m1.extra(), m1.forward()
# %% closures gpu
def make_adders():
    total = 0
    def add(t):
        nonlocal total
        total += t.sum().item()
        return total
    def peek():
        return total
    return add, peek
add, peek = make_adders()
add(torch.ones(3, device="cuda"))
# %% closures-later
add(torch.ones(1)), peek()
# %% closures-gpu-again gpu
add(torch.ones(2, device="cuda")), peek()
# %% late-binding gpu
fs = [lambda t: t + i for i in range(3)]
[f(torch.zeros(1, device="cuda")).item() for f in fs]
# %% late-binding-global
i = 100
gs = [lambda t: t + i for i in range(2)]
h = lambda t: t + i
[f(0) for f in fs], [g(0) for g in gs], h(0)
# %% global-changed gpu
i = -1
h(torch.zeros(1, device="cuda")), fs[0](0)
# %% delete gpu
del scale
try:
    use(w)
except NameError as e:
    print(e)
# %% delete-seen raises
use(torch.ones(1))
# %% define-again
scale = lambda t: t - 1
use(torch.ones(1))
# %% define-gpu gpu
use(torch.ones(1, device="cuda"))
# %% globals-counter gpu
def bump():
    global counter
    counter += 10
    return counter
bump(), bump()
# %% counter-seen
counter
# %% shadow-builtin gpu
sum = lambda xs: "mine"
print(sum([1, 2]))
# %% shadow-later
sum([1, 2])
# %% unshadow gpu
del sum
sum([1, 2])
# %% unshadow-later
sum([1, 2])
# %% swap gpu
a = torch.tensor([1.0], device="cuda"); b = torch.tensor([2.0], device="cuda")
a, b = b, a
a.item(), b.item()
# %% swap-again from=swap
# %% aliases gpu
xs = [a, b]; ys = xs; zs = list(xs)
ys.append(a)
len(xs), len(zs), xs[2] is xs[0], zs[0] is xs[0]
# %% aliases-later gpu
ys.pop(); xs[0].fill_(9)
len(xs), a.item(), zs[0].item(), xs is ys
# %% underscore-own
_ = "my own"
5
# %% underscore-own-gpu gpu
_
# %% del-underscore
del _
7
# %% back gpu
_
# %% semicolon gpu
w + 1;
# %% after-semicolon gpu
_
# %% none gpu
None
# %% last
_, len(Out) == len(_oh), Out[max(Out)]
