# Learning-rate schedules of many kinds over one small model: stepped per batch or epoch, chained, saved, replaced.
# gpu-cells: 21
# %% imports
import math
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    ChainedScheduler, ConstantLR, CosineAnnealingWarmRestarts, CyclicLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR,
    OneCycleLR, PolynomialLR, ReduceLROnPlateau, SequentialLR, StepLR,
)
%matplotlib inline
torch.manual_seed(21)
# %% problem
inputs = torch.randn(96, 6)
targets = inputs @ torch.arange(1.0, 7.0).unsqueeze(1) + 0.05 * torch.randn(96, 1)

def make_model():
    torch.manual_seed(3)
    return nn.Linear(6, 1).cuda()

def one_epoch(model, opt, per_batch=None, batches=6):
    total = 0.0
    for x, t in zip(inputs.chunk(batches), targets.chunk(batches)):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x.cuda()), t.cuda())
        loss.backward()
        opt.step()
        if per_batch is not None:
            per_batch.step()
        total += loss.item()
    return total / batches

rates = {}
# %% onecycle
model = make_model()
opt = SGD(model.parameters(), lr=0.01, momentum=0.9)
onecycle = OneCycleLR(opt, max_lr=0.1, epochs=4, steps_per_epoch=6, pct_start=0.3)
rates['onecycle'] = []
for epoch in range(2):
    loss = one_epoch(model, opt, per_batch=onecycle)
    rates['onecycle'].append(onecycle.get_last_lr()[0])
    print(f"{epoch}: loss {loss:.4f} lr {opt.param_groups[0]['lr']:.5f} momentum {opt.param_groups[0]['momentum']:.4f}")
# %% onecycle-2
for epoch in range(2):
    loss = one_epoch(model, opt, per_batch=onecycle)
    rates['onecycle'].append(onecycle.get_last_lr()[0])
    print(f"{epoch}: loss {loss:.4f} lr {opt.param_groups[0]['lr']:.5f} momentum {opt.param_groups[0]['momentum']:.4f}")
# %% past-the-end raises
onecycle.step()
# %% state
{k: (round(v, 5) if isinstance(v, float) else v) for k, v in onecycle.state_dict().items() if not callable(v)}
# %% plateau
model = make_model()
opt = SGD(model.parameters(), lr=0.3)
plateau = ReduceLROnPlateau(opt, mode='min', factor=0.1, patience=1, threshold=1e-3)
for epoch in range(6):
    value = one_epoch(model, opt)
    plateau.step(value)
    print(epoch, f"{value:.5f}", plateau.num_bad_epochs, [f"{g['lr']:.1e}" for g in opt.param_groups])
# %% plateau-by-tensor
value = torch.tensor(one_epoch(model, opt), device='cuda')
plateau.step(value)
plateau.best, plateau.num_bad_epochs, plateau.last_epoch
# %% plateau-more
for _ in range(3):
    plateau.step(5.0)
opt.param_groups[0]['lr'], plateau.get_last_lr()
# %% warmup
model = make_model()
opt = AdamW(model.parameters(), lr=0.2)
warmup_steps, total_steps = 5, 20
def lr_lambda(step):
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))
warmup = LambdaLR(opt, lr_lambda)
# %% warmup-run
trace = []
for _ in range(2):
    one_epoch(model, opt, per_batch=warmup)
    trace.append(round(warmup.get_last_lr()[0], 6))
trace
# %% change-warmup
total_steps = 14
[round(lr_lambda(s), 4) for s in (0, 4, 6, 13)]
# %% warmup-rest
one_epoch(model, opt, per_batch=warmup, batches=2)
trace.append(round(warmup.get_last_lr()[0], 6))
trace, warmup.last_epoch
# %% sequential
model = make_model()
opt = SGD(model.parameters(), lr=0.1)
sequential = SequentialLR(opt, [LinearLR(opt, 0.1, total_iters=3), ExponentialLR(opt, 0.8)], milestones=[3])
found = []
for epoch in range(4):
    one_epoch(model, opt)
    sequential.step()
    found.append(round(sequential.get_last_lr()[0], 6))
found
# %% sequential-2
for epoch in range(3):
    one_epoch(model, opt)
    sequential.step()
    found.append(round(opt.param_groups[0]['lr'], 6))
found, sequential._schedulers[1].optimizer is opt
# %% chained
model = make_model()
opt = SGD([{'params': [model.weight]}, {'params': [model.bias], 'lr': 0.5}], lr=0.1)
chained = ChainedScheduler([ConstantLR(opt, factor=0.5, total_iters=2), MultiStepLR(opt, [3, 5], gamma=0.1)], optimizer=opt)
table = []
for epoch in range(6):
    one_epoch(model, opt)
    chained.step()
    table.append([round(g['lr'], 6) for g in opt.param_groups])
table
# %% restarts
model = make_model()
opt = SGD(model.parameters(), lr=0.1)
restarts = CosineAnnealingWarmRestarts(opt, T_0=4, T_mult=2)
for i in range(6):
    one_epoch(model, opt, batches=1)
    restarts.step(i + 0.5)
restarts.T_cur, restarts.T_i, round(restarts.get_last_lr()[0], 6)
# %% cyclic
cyclic = CyclicLR(opt, 0.001, 0.1, step_size_up=3, mode='triangular2', cycle_momentum=False)
lrs = []
for i in range(8):
    opt.step()
    cyclic.step()
    lrs.append(round(cyclic.get_last_lr()[0], 5))
lrs
# %% cyclic-more
for i in range(4):
    opt.step()
    cyclic.step()
    lrs.append(round(cyclic.get_last_lr()[0], 5))
lrs[-4:]
# %% save
saved = {'model': {k: v.cpu() for k, v in model.state_dict().items()}, 'opt': opt.state_dict()}
poly = PolynomialLR(opt, total_iters=6, power=2.0)
for _ in range(2):
    one_epoch(model, opt, batches=2)
    poly.step()
saved['poly'] = poly.state_dict()
saved['poly']['last_epoch'], round(opt.param_groups[0]['lr'], 6)
# %% resume
fresh = make_model()
fresh.load_state_dict(saved['model'])
fresh_opt = SGD(fresh.parameters(), lr=0.1)
fresh_poly = PolynomialLR(fresh_opt, total_iters=6, power=2.0)
fresh_poly.load_state_dict(saved['poly'])
for _ in range(2):
    one_epoch(fresh, fresh_opt, batches=2)
    fresh_poly.step()
fresh_poly.last_epoch, round(fresh_poly.get_last_lr()[0], 8)
# %% own
class WarmHold(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, hold, decay, last_epoch=-1):
        self.hold, self.decay = hold, decay
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self.last_epoch <= self.hold:
            return list(self.base_lrs)
        return [g['lr'] * self.decay for g in self.optimizer.param_groups]

own = WarmHold(fresh_opt, 2, 0.5)
for _ in range(3):
    one_epoch(fresh, fresh_opt)
    own.step()
own.get_last_lr()
# %% own-more
for _ in range(2):
    one_epoch(fresh, fresh_opt)
    own.step()
own.get_last_lr(), own.last_epoch, type(own).__name__
# %% wrong-order
cosine = StepLR(SGD(fresh.parameters(), lr=1.0), 1)
cosine.step()
# %% rates
{k: [f"{v:.5f}" for v in vs] for k, vs in rates.items()}
