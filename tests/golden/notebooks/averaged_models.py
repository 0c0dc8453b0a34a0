# Averages of weights: a hand-made EMA, AveragedModel with its batch-norm update, SWALR, snapshots, ensembles, early stopping.
# gpu-cells: 19
# %% imports
import copy
from collections import OrderedDict
import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(31)
DEV = torch.device('cuda', 0)
# %% data
n = 240
X = torch.randn(n, 8)
Y = (X[:, 0] * X[:, 1] > 0).long()
train_dl = DataLoader(TensorDataset(X[:180], Y[:180]), batch_size=30, shuffle=True)
valid = X[180:], Y[180:]
# %% model
def conv_block(i, o):
    return [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()]
model = nn.Sequential(OrderedDict(
    body=nn.Sequential(*conv_block(8, 32), *conv_block(32, 32)),
    head=nn.Linear(32, 2))).to(DEV)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
# %% ema
class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.backup = {}
    @torch.no_grad()
    def update(self):
        for k, v in self.model.named_parameters():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
    def __enter__(self):
        for k, v in self.model.named_parameters():
            self.backup[k] = v.data
            v.data = self.shadow[k]
        return self.model
    def __exit__(self, *exc):
        for k, v in self.model.named_parameters():
            v.data = self.backup[k]
        self.backup.clear()
ema = EMA(model, 0.9)
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
swa_scheduler = SWALR(opt, swa_lr=1e-3, anneal_epochs=2)
ema.model is model, swa_model.n_averaged.item()
# %% evaluate
@torch.no_grad()
def accuracy(m):
    was = m.training
    m.eval()
    out = m(valid[0].to(DEV)).argmax(1).cpu()
    m.train(was)
    return (out == valid[1]).float().mean().item()

def epoch():
    for x, y in train_dl:
        loss = nn.functional.cross_entropy(model(x.to(DEV)), y.to(DEV))
        opt.zero_grad(); loss.backward(); opt.step()
        ema.update()
        ema_model.update_parameters(model)
    return loss.item()
# %% first
for e in range(2):
    print(e, f'{epoch():.4f} {accuracy(model):.3f}')
# %% with-ema
live = model.head.weight.data_ptr()
with ema as m:
    averaged = accuracy(m)
    inside = m.head.weight.data_ptr() == ema.shadow['head.weight'].data_ptr()
f'{averaged:.3f}', inside, model.head.weight.data_ptr() == live
# %% views
flat = ema.shadow['head.weight'].view(-1)
flat[0], ema.shadow['head.weight'][0, 0] == flat[0]
# %% poke
flat[:2] = 0.5
ema.shadow['head.weight'][0, :3]
# %% swa
for e in range(3):
    loss = epoch()
    swa_model.update_parameters(model)
    swa_scheduler.step()
    print(e, f'{loss:.4f}', f"{opt.param_groups[0]['lr']:.5f}", swa_model.n_averaged.item())
# %% swa-bn
update_bn(train_dl, swa_model, device=DEV)
swa_model.module.body[1].running_mean[:3], f'{accuracy(swa_model):.3f}'
# %% compare
{name: f'{accuracy(m):.3f}' for name, m in {'live': model, 'swa': swa_model, 'ema': ema_model}.items()}
# %% distance
with torch.no_grad():
    far = {k: (v - dict(model.named_parameters())[k]).norm().item() for k, v in swa_model.module.named_parameters()}
{k: round(v, 4) for k, v in far.items()}
# %% snapshots
snapshots = []
for _ in range(3):
    epoch()
    snapshots.append(copy.deepcopy(model))
len(snapshots), snapshots[0].head.weight is model.head.weight
# %% ensemble
with torch.no_grad():
    probs = torch.stack([s.eval()(valid[0].to(DEV)).softmax(-1) for s in snapshots])
mean = probs.mean(0)
(mean.argmax(1).cpu() == valid[1]).float().mean(), probs.std(0).mean()
# %% soup
soup = copy.deepcopy(model)
states = [s.state_dict() for s in snapshots]
soup.load_state_dict({k: torch.stack([s[k].float() for s in states]).mean(0).to(states[0][k].dtype) for k in states[0]})
f'{accuracy(soup):.3f}', soup.body[1].num_batches_tracked
# %% stopper
class Stopper:
    """Restores the best weights."""
    def __init__(self, patience=2, delta=0.0):
        self.patience, self.delta, self.best, self.count, self.weights = patience, delta, -np.inf, 0, None
    def step(self, score, m):
        if score > self.best + self.delta:
            self.best, self.count = score, 0
            self.weights = {k: v.cpu().clone() for k, v in m.state_dict().items()}
            return False
        self.count += 1
        return self.count > self.patience
stop = Stopper()
vars(stop)
# %% stop-loop
for e in range(4):
    epoch()
    if stop.step(accuracy(model), model):
        print('stopped at', e)
        break
else:
    print('went on', f'{stop.best:.3f}', stop.count)
# %% stop-state
stop.count, round(stop.best, 4), {v.device.type for v in stop.weights.values()}
# %% restore-best
model.load_state_dict(stop.weights)
f'{accuracy(model):.4f}', round(stop.best, 4) == round(accuracy(model), 4)
# %% state-dict
sd = swa_model.state_dict()
fresh = AveragedModel(model)
fresh.load_state_dict(sd)
fresh.n_averaged.item(), torch.equal(fresh.module.head.weight, swa_model.module.head.weight), list(sd)[:2]
# %% interpolate
alphas = torch.linspace(0, 1, 4).tolist()
line = []
probe = copy.deepcopy(model)
a, b = model.state_dict(), snapshots[0].state_dict()
for t in alphas:
    probe.load_state_dict({k: torch.lerp(a[k], b[k], t) if a[k].is_floating_point() else a[k] for k in a})
    line.append(accuracy(probe))
np.round(line, 3)
# %% grads-shared
for p, q in zip(model.parameters(), snapshots[1].parameters()):
    q.data = p.data
snapshots[1].head.weight.data_ptr() == model.head.weight.data_ptr()
# %% shared-step
opt.zero_grad()
nn.functional.cross_entropy(model(X[:30].to(DEV)), Y[:30].to(DEV)).backward()
opt.step()
torch.equal(snapshots[1].head.weight, model.head.weight), snapshots[1].head.weight.data_ptr() == model.head.weight.data_ptr()
