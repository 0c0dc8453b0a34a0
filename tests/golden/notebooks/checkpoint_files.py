# Checkpoints on disk: saved in one cell, loaded in others with map_location, training resumed, best kept, old ones removed.
# gpu-cells: 16
# %% imports
import glob, io, json, os, pickle, shutil, tempfile
from pathlib import Path
import numpy as np
import torch
import torch.nn as nn
CKPT = Path('checkpoints')
shutil.rmtree(CKPT, ignore_errors=True)
CKPT.mkdir()
torch.manual_seed(99)
device = torch.device('cuda:0')
# %% data
x = torch.rand(200, 5)
y = torch.stack([x.sum(1), x.prod(1)], dim=1)
mean, std = x.mean(0), x.std(0)
np.save(CKPT / 'stats.npy', np.stack([mean.numpy(), std.numpy()]))
os.listdir(CKPT)
# %% model
def build():
    return nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.BatchNorm1d(32), nn.Linear(32, 2))
model = build().to(device)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
start_epoch, best = 0, float('inf')
# %% save-load
def save(name, **extra):
    torch.save({'model': model.state_dict(), 'opt': opt.state_dict(), 'sched': sched.state_dict(),
                'rng': torch.get_rng_state(), 'cuda_rng': torch.cuda.get_rng_state(), **extra}, CKPT / name)

def load(name, where=device):
    state = torch.load(CKPT / name, map_location=where, weights_only=False)
    model.load_state_dict(state['model'])
    opt.load_state_dict(state['opt'])
    sched.load_state_dict(state['sched'])
    torch.set_rng_state(state['rng'].cpu())
    torch.cuda.set_rng_state(state['cuda_rng'].cpu())
    return state['epoch'] + 1

def train(epochs, first=0):
    global best
    for epoch in range(first, first + epochs):
        model.train()
        order = torch.randperm(200, device=device).cpu()
        for idx in order.split(50):
            noise = torch.randn(len(idx), 5, device=device) * 0.01
            loss = nn.functional.mse_loss(model((x[idx].to(device) - mean.to(device)) / std.to(device) + noise), y[idx].to(device))
            opt.zero_grad(); loss.backward(); opt.step()
        sched.step()
        print(f'epoch {epoch} loss {loss.item():.6f} lr {sched.get_last_lr()[0]:.6f}')
        save(f'epoch{epoch}.pt', epoch=epoch, loss=loss.item())
        if loss.item() < best:
            best = loss.item()
            shutil.copy(CKPT / f'epoch{epoch}.pt', CKPT / 'best.pt')
# %% train
train(4)
# %% list
sorted(p.name for p in CKPT.glob('*.pt'))
# %% peek
state = torch.load(CKPT / 'epoch1.pt', map_location='cpu', weights_only=False)
state['epoch'], {k: str(v.device) for k, v in state['model'].items()}, len(state['opt']['state'])
# %% go-on
train(2, first=4)
reference = {k: v.clone() for k, v in model.state_dict().items()}
# %% resume
start_epoch = load('epoch3.pt')
train(2, first=start_epoch)
all(torch.equal(v, reference[k]) for k, v in model.state_dict().items())
# %% resume-fresh
model = build().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1.0)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.5)
train(2, first=load('epoch3.pt', where='cpu'))
all(torch.equal(v, reference[k]) for k, v in model.state_dict().items()), opt.param_groups[0]['lr']
# %% best
record = torch.load(CKPT / 'best.pt', map_location=lambda storage, loc: storage, weights_only=False)
round(record['loss'], 6) == round(best, 6), record['model']['0.weight'].device
# %% map-dict
moved = torch.load(CKPT / 'best.pt', map_location={'cuda:0': 'cpu'}, weights_only=False)
back = torch.load(CKPT / 'best.pt', weights_only=False)
moved['model']['0.bias'].device, back['model']['0.bias'].device, back['rng'].device
# %% weights-only
torch.save(model.state_dict(), CKPT / 'weights.pth')
weights = torch.load(CKPT / 'weights.pth', weights_only=True)
type(weights).__name__, weights['3.weight'].device, weights['2.num_batches_tracked']
# %% mmap
mapped = torch.load(CKPT / 'weights.pth', map_location='cpu', mmap=True)
round(sum(v.double().sum().item() for v in mapped.values()), 6) == round(sum(v.double().sum().item() for v in model.state_dict().values()), 6)
# %% host
host = build()
print(host.load_state_dict(mapped))
host.eval()
with torch.no_grad():
    answer = host((x[:3] - mean) / std)
answer
# %% same-on-gpu
model.eval()
with torch.no_grad():
    out = model(((x[:3] - mean) / std).to(device))
torch.allclose(out.cpu(), answer, atol=1e-6)
# %% partial
partial = {k: v for k, v in weights.items() if k.startswith('0.')}
other = build().to(device)
result = other.load_state_dict(partial, strict=False)
result.missing_keys[:3], result.unexpected_keys
# %% mismatch raises
nn.Linear(4, 4).to(device).load_state_dict(partial)
# %% whole
class Wrapped(nn.Module):
    def __init__(self, inner, scale=2.0):
        super().__init__()
        self.inner, self.scale = inner, scale
    def forward(self, x):
        return self.inner(x) * self.scale
torch.save(Wrapped(model), CKPT / 'whole.pt')
whole = torch.load(CKPT / 'whole.pt', weights_only=False)
type(whole) is Wrapped, next(whole.parameters()).device
# %% whole-cpu
again = torch.load(CKPT / 'whole.pt', map_location='cpu', weights_only=False)
with torch.no_grad():
    print(torch.allclose(again.eval()(((x[:3] - mean) / std)), 2 * answer, atol=1e-5))
type(again) is Wrapped, isinstance(again, Wrapped)
# %% buffer
buffer = io.BytesIO()
torch.save({'t': torch.arange(3, device='cuda'), 'opt': opt.state_dict()}, buffer)
buffer.seek(0)
len(buffer.getvalue()) > 0, buffer.tell()
# %% buffer-read
torch.load(buffer, weights_only=True)['t'], buffer.tell() > 0
# %% pickle
blob = pickle.dumps({'w': model[0].weight.detach(), 'step': 7})
loaded = pickle.loads(blob)
loaded['w'].device, loaded['step'], torch.equal(loaded['w'], model[0].weight)
# %% json
with open(CKPT / 'meta.json', 'w') as f:
    json.dump({'best': round(best, 5), 'epochs': start_epoch, 'device': str(device)}, f)
json.loads((CKPT / 'meta.json').read_text())
# %% stats
loaded_mean, loaded_std = torch.from_numpy(np.load(CKPT / 'stats.npy')).to(device)
torch.equal(loaded_mean.cpu(), mean), loaded_std.device
# %% keep-last
for old in sorted(CKPT.glob('epoch*.pt'))[:-2]:
    old.unlink()
print(*sorted(p.name for p in CKPT.iterdir()), sep='\n')
# %% clean
shutil.rmtree(CKPT)
CKPT.exists()
