# Mixed precision: autocast in several forms, GradScaler with overflow, clipping and accumulation, scalers saved.
# gpu-cells: 21
# %% imports
import torch, copy
from torch import nn
from torch.amp import GradScaler, autocast
from contextlib import nullcontext

torch.manual_seed(5)
use_amp = True
device = 'cuda' if torch.cuda.is_available() else 'cpu'
# %% data
X = torch.randn(128, 12)
Y = (X[:, :3].sum(dim=1) > 0).long()
def loader(bs=32):
    for i in range(0, len(X), bs):
        yield X[i:i+bs].to(device, non_blocking=True), Y[i:i+bs].to(device, non_blocking=True)
# %% model
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 32)
        self.norm = nn.LayerNorm(32)
        self.b = nn.Linear(32, 2)
        self.seen = {}
    def forward(self, x):
        h = self.a(x)
        self.seen['linear'] = h.dtype
        h = self.norm(h)
        self.seen['norm'] = h.dtype
        out = self.b(torch.relu(h))
        self.seen['out'] = out.dtype
        return out
net = Net().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
scaler = GradScaler('cuda', enabled=use_amp, init_scale=1024.0, growth_interval=5)
criterion = nn.CrossEntropyLoss()
# %% epoch
def epoch():
    total = 0.
    for xb, yb in loader():
        opt.zero_grad(set_to_none=True)
        with autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            loss = criterion(net(xb), yb)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
    return total / 4
# %% run
for e in range(2):
    print(f'epoch {e}: {epoch():.4f} scale {scaler.get_scale()}')
net.seen
# %% scale
scaler.get_scale(), scaler.is_enabled(), scaler.get_growth_interval(), scaler.state_dict()
# %% run-more
for e in range(2):
    print(f'epoch {e}: {epoch():.4f} scale {scaler.get_scale()}')
# %% overflow
with torch.no_grad():
    before = net.b.weight.clone()
opt.zero_grad()
xb, yb = next(loader())
with autocast('cuda', dtype=torch.float16):
    loss = criterion(net(xb), yb) * 1e30
scaler.scale(loss).backward()
scaler.step(opt)
old = scaler.get_scale()
scaler.update()
torch.equal(before, net.b.weight), old, scaler.get_scale()
# %% clip
opt.zero_grad()
with autocast('cuda', dtype=torch.float16):
    loss = criterion(net(xb), yb)
scaler.scale(loss).backward()
scaler.unscale_(opt)
norm = nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
scaler.step(opt)
scaler.update()
f'{norm.item():.5f}', f'{loss.item():.4f}'
# %% accumulate
opt.zero_grad()
for i, (xb, yb) in enumerate(loader(16)):
    with autocast('cuda', dtype=torch.float16):
        loss = criterion(net(xb), yb) / 4
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        print(i, f'{loss.item() * 4:.4f}', scaler.get_scale())
# %% bf16
with torch.autocast('cuda', dtype=torch.bfloat16):
    out = net(X[:4].cuda())
    matrix = torch.ones(3, 3, device='cuda') @ torch.ones(3, 3, device='cuda')
    total = matrix.sum()
    exp = matrix.exp()
out.dtype, matrix.dtype, total.dtype, exp.dtype, net.seen
# %% host-autocast
with torch.autocast('cpu', dtype=torch.bfloat16):
    host = torch.ones(2, 2) @ torch.ones(2, 2)
host.dtype, torch.is_autocast_enabled('cuda')
# %% nested
with torch.autocast('cuda', dtype=torch.float16):
    a = torch.mm(matrix.float(), matrix.float())
    with torch.autocast('cuda', enabled=False):
        b = torch.mm(matrix.float(), matrix.float())
    c = torch.mm(matrix.float(), matrix.float())
[t.dtype for t in (a, b, c)]
# %% decorator
@torch.autocast('cuda', dtype=torch.bfloat16)
def predict(model, x):
    return model(x.cuda()).float().softmax(-1)

ctx = torch.autocast('cuda', dtype=torch.float16) if use_amp else nullcontext()
# %% predict
with torch.no_grad():
    p = predict(net, X[:2])
p.dtype, p.sum(-1).round(decimals=2), net.seen['out']
# %% kept-context
with ctx:
    q = net(X[:2].cuda())
q.dtype, torch.is_autocast_enabled('cuda'), torch.get_autocast_dtype('cuda')
# %% kept-again
with ctx, torch.inference_mode():
    q = net(X[:2].cuda()).argmax(1)
q
# %% saved-scaler
state = copy.deepcopy(scaler.state_dict())
state['scale'] *= 2
scaler.load_state_dict(state)
scaler.get_scale(), state
# %% after-load
print(f'{epoch():.4f}', scaler.get_scale())
# %% off
use_amp = False
scaler = GradScaler('cuda', enabled=use_amp)
scaler.get_scale(), scaler.is_enabled()
# %% plain
print(f'{epoch():.4f}', net.seen['out'], scaler.state_dict())
# %% half
half = copy.deepcopy(net).half()
with torch.no_grad():
    h = half(X[:3].cuda().half())
half.a.weight.dtype, net.a.weight.dtype, h.dtype, (h.float() - net(X[:3].cuda())).abs().max().item() < 0.05
# %% split-scale
use_amp = True
scaler = GradScaler('cuda', init_scale=512.)
opt.zero_grad()
with autocast('cuda', dtype=torch.float16):
    loss = criterion(net(X[:32].to(device)), Y[:32].to(device))
scaler.scale(loss).backward()
# %% split-step
scaler.step(opt); scaler.update()
round(sum(p.grad.float().norm().item() for p in net.parameters()) / 512, 4)
