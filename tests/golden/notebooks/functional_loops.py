# Loops made of functions: closures, functools.partial, generators of batches, an LBFGS closure, decorators.
# gpu-cells: 13
# %% imports
import functools
import itertools
import operator
import torch
from torch import nn, optim
g = torch.Generator().manual_seed(11)
dev = "cuda"
# %% data
xs = torch.linspace(-3, 3, 200).unsqueeze(1)
ys = torch.sin(xs) + 0.1 * torch.randn(xs.shape, generator=g)
xs.mean().abs() < 1e-5, ys.std()
# %% batches
def batches(x, y, size, *, shuffle=True, generator=None):
    """Endless."""
    while True:
        order = torch.randperm(len(x), generator=generator) if shuffle else torch.arange(len(x))
        for idx in order.split(size):
            yield x[idx].to(dev, non_blocking=True), y[idx].to(dev, non_blocking=True)
# %% counter
def make_counter(start=0):
    count = start
    def bump(n=1):
        nonlocal count
        count += n
        return count
    return bump

steps = make_counter()
steps(), steps(2)
# %% model
torch.manual_seed(0)
def mlp(*widths, act=nn.Tanh):
    return nn.Sequential(*itertools.chain.from_iterable(
        (nn.Linear(a, b), act()) for a, b in itertools.pairwise(widths)))[:-1]

model = mlp(1, 24, 24, 1).to(dev)
loss_fn = functools.partial(nn.functional.smooth_l1_loss, beta=0.5)
make_opt = functools.partial(optim.Adam, lr=5e-3, betas=(0.9, 0.99))
opt = make_opt(model.parameters())
print(model)
# %% train-step
def train_step(model, opt, loss_fn, batch):
    x, y = batch
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()

step = functools.partial(train_step, model, opt, loss_fn)
# %% run
losses = [step(b) for b in itertools.islice(batches(xs, ys, 32, generator=g), 40)]
print([f"{v:.4f}" for v in losses[::8]], steps(len(losses)))
# %% rest
losses += [step(b) for b in itertools.islice(batches(xs, ys, 32, generator=g), 40)]
print(f"{sum(losses[-10:]) / 10:.5f}", steps(40))
# %% peek
steps(0), len(losses), step.func is train_step, step.args[0] is model, step.args[1] is opt
# %% closure-over-device
def make_evaluator(model, x, y):
    x, y = x.to(dev), y.to(dev)
    best = float("inf")

    @torch.no_grad()
    def evaluate():
        nonlocal best
        model.eval()
        value = nn.functional.mse_loss(model(x), y).item()
        model.train()
        best = min(best, value)
        return value, best

    return evaluate

evaluate = make_evaluator(model, xs, ys)
"%.5f %.5f" % evaluate()
# %% lbfgs
lbfgs = optim.LBFGS(model.parameters(), lr=0.5, max_iter=10, history_size=5, line_search_fn="strong_wolfe")
calls = 0
x_all, y_all = xs.to(dev), ys.to(dev)

def closure():
    global calls
    calls += 1
    lbfgs.zero_grad()
    loss = nn.functional.mse_loss(model(x_all), y_all)
    loss.backward()
    return loss

for _ in range(3):
    value = lbfgs.step(closure)
    print(f"{value.item():.6f}", calls)
# %% lbfgs-again
for _ in range(2):
    value = lbfgs.step(closure)
print(f"{value.item():.6f}", calls)
"%.5f %.5f" % evaluate()
# %% timed
history = []
def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        out = fn(*args, **kwargs)
        history.append((fn.__name__, round(float(out), 5)))
        return out
    return wrapper

@logged
def total_norm(parameters):
    return functools.reduce(operator.add, (p.grad.pow(2).sum() for p in parameters)).sqrt()
# %% norms
with torch.enable_grad():
    closure()
total_norm(model.parameters())
# %% norms-2
model.zero_grad()
closure()
total_norm(list(model.parameters())[:2])
history
# %% redefine
@logged
def total_norm(parameters):
    """The largest entry instead."""
    return max(p.grad.abs().max() for p in parameters)

total_norm.__name__, total_norm.__doc__
# %% norms-3
total_norm(model.parameters())
history[-1], calls
# %% poly
coefficients = nn.Parameter(torch.zeros(4, device=dev))
powers = torch.cat([x_all ** i for i in range(4)], dim=1)
solver = optim.SGD([coefficients], lr=1e-3, momentum=0.8, nesterov=True)
for i in range(50):
    residual = powers @ coefficients - y_all.squeeze(1)
    solver.zero_grad()
    residual.square().mean().backward()
    solver.step()
coefficients.detach().cpu().numpy().round(4)
# %% exact
exact = torch.linalg.lstsq(powers, y_all).solution.squeeze()
(exact - coefficients).abs().max().item() > 0, [round(v, 4) for v in exact.tolist()]
