# Cells that fail in every way people meet, and what they do next with the half-done state.
# gpu-cells: 39
# %% setup
import asyncio
import contextlib
import functools
import json
import traceback

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
x = torch.arange(6.0, device="cuda")
progress = []


class ShapeProblem(ValueError):
    def __init__(self, wanted, found, *, hint=None):
        super().__init__(f"wanted {tuple(wanted)}, found {tuple(found)}")
        self.wanted, self.found, self.hint = wanted, found, hint


def check(t, *shape):
    if t.shape != torch.Size(shape):
        raise ShapeProblem(shape, t.shape, hint="reshape it")
    return t
# %% matmul raises
a = torch.randn(3, 4, device="cuda")
b = torch.randn(3, 4, device="cuda")
c = a @ b
# %% matmul-fixed
c = a @ b.T
c.shape
# %% wrong-device raises
model = nn.Linear(4, 2).cuda()
model(torch.ones(1, 4))
# %% wrong-device-fixed
model(torch.ones(1, 4).cuda()).shape
# %% index raises
x[10]
# %% half-done raises
for i in range(6):
    x[i] = 100 + i
    progress.append(i)
    if i == 3:
        raise RuntimeError(f"stopped at {i}")
# %% half-done-look
print(x, progress)
# %% half-done-goes-on gpu
for i in range(progress[-1] + 1, 6):
    x[i] = 100 + i
    progress.append(i)
x, progress
# %% custom raises
check(x, 2, 3)
# %% custom-caught
try:
    check(x, 2, 3)
except ShapeProblem as e:
    problem = e
    print(e, e.hint, e.found)
    check(x.view(e.wanted), 2, 3)
# %% keep-exception
# the exception is an ordinary object later
type(problem).__name__, problem.args, problem.wanted, isinstance(problem, ValueError)
# %% chained raises
def load(path):
    try:
        return json.loads(path)
    except json.JSONDecodeError as e:
        raise RuntimeError("no such weights") from e

def restore(model, path):
    try:
        load(path)
    except RuntimeError:
        # goes wrong again while it handles the first one
        return model.weight.cuda()["missing"]

restore(model, "{")
# %% notes gpu raises
err = ValueError("bad batch")
err.add_note("batch 7 of epoch 2")
err.add_note("see x: " + str(x[:2].tolist()))
raise err
# %% group raises
def failing(i):
    if i % 2:
        raise [ValueError, KeyError, ZeroDivisionError][i % 3](f"part {i}")
    return x[i]

errors = []
for i in range(6):
    try:
        failing(i)
    except Exception as e:
        errors.append(e)
raise ExceptionGroup("several parts failed", errors)
# %% except-star
try:
    raise ExceptionGroup("again", [ValueError(1), TypeError(str(x.dtype)), ExceptionGroup("in", [ValueError(2)])])
except* ValueError as eg:
    print("values", [str(e) for e in eg.exceptions])
except* TypeError as eg:
    print("types", eg.exceptions)
# %% assertion raises
assert x.sum() < 0, f"sum is {x.sum().item()}"
# %% lambda raises
rows = [x, x[:2], x[None]]
picked = list(map(lambda r: r.view(3, 2), rows))
# %% comprehension raises
total = sum(row.reshape(-1)[i].item() for i, row in enumerate(rows + [None]))
# %% generator gpu raises
def windows(t, n):
    for start in range(0, 10, n):
        piece = t[start : start + n]
        if not len(piece):
            raise IndexError(f"window at {start} is empty")
        yield piece.sum()

[float(w) for w in windows(x, 4)]
# %% library-frames raises
nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(4, 1)).cuda()(torch.ones(2, 4, device="cuda"))
# %% numpy-error raises
np.concatenate([x.cpu().numpy(), np.ones((2, 2))])
# %% type-error raises
x.cuda().numpy()
# %% name-error gpu raises
print(undefined_name)
# %% attribute-error gpu raises
x.shapee
# %% syntax gpu raises
y = x.cuda(
print(y
# %% indentation gpu raises
if True:
print(x)
# %% interrupt gpu raises
started = True
raise KeyboardInterrupt
# %% after-interrupt gpu
started, x.sum().item()
# %% context-exit raises
@contextlib.contextmanager
def doubled(t):
    t.mul_(2)
    try:
        yield t
    finally:
        t.div_(2)
        print("restored", t[0].item())

with doubled(x) as d:
    print("inside", d[0].item())
    d.view(7)
# %% context-after
x[0].item()
# %% finally-order gpu raises
def stage(name):
    try:
        print("enter", name)
        if name == "inner":
            return 1 / 0
        return stage("inner")
    finally:
        print("leave", name)

stage("outer")
# %% recursion gpu
def deep(t, n=0):
    return deep(t, n + 1)

try:
    deep(x)
except RecursionError as e:
    print(type(e).__name__, e)
# %% decorated raises
def retry(times):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            for attempt in range(times):
                try:
                    return f(*args, **kwargs)
                except ShapeProblem as e:
                    print(f"attempt {attempt}: {e}")
            raise TimeoutError(f"{f.__name__} failed {times} times")
        return inner
    return wrap

@retry(2)
def fit(t):
    return check(t * 2, 3, 2)

fit(x)
# %% decorated-fixed
fit(x.view(3, 2))
# %% async raises
async def worker(i):
    await asyncio.sleep(0)
    if i == 2:
        raise LookupError(f"worker {i} sees {x.numel()} numbers")
    return i

await asyncio.gather(*(worker(i) for i in range(4)))
# %% format-exc
try:
    x.view(4)
except RuntimeError:
    print(traceback.format_exc().splitlines()[-1])
# %% reraise raises
try:
    x.view(5)
except RuntimeError as e:
    e.add_note("while reshaping")
    raise
# %% suppressed raises
try:
    {}["key"]
except KeyError:
    raise ShapeProblem((1,), x.shape) from None
# %% bad-repr
class Picky:
    def __init__(self, t):
        self.t = t
    def __repr__(self):
        raise RuntimeError(f"no repr for {self.t.numel()}")

p = Picky(x)
# %% bad-repr-shown raises
p
# %% cpu-after raises
# a function defined in a gpu cell fails in a cell without one
list(windows([1, 2, 3], 2))
# %% oom-like gpu raises
torch.empty(1 << 46, device="cuda")
# %% stop-iteration gpu raises
next(iter(()))
# %% system-exit gpu raises
raise SystemExit("enough")
# %% still-here
x.sum().item(), len(progress), c.shape
