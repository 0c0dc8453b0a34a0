# Host and GPU tensors side by side: aliases, views and in-place work over cells, pinned memory, errors of mixing, moves.
# gpu-cells: 40
# %% imports
import gc, sys
import numpy as np
import torch
from torch import nn
cpu, gpu = torch.device('cpu'), torch.device('cuda')
# %% base
base = torch.arange(12., device=gpu)
rows = base.view(3, 4)
col, tail, every = rows[:, 1], base[6:], base[::3]
host = torch.arange(12.)
host_rows = host.view(3, 4)
shared = host.numpy()
rows
# %% inplace
rows[1] *= 10
base
# %% inplace-views
col += 100
tail.zero_()
base, every, rows.data_ptr() == base.data_ptr(), tail.storage_offset()
# %% host-inplace
host_rows[0] = -1
shared[5] = 55
host, shared
# %% host-through-gpu
base.copy_(host)
host_rows.mul_(2)
rows, host, shared[0]
# %% dict-of-views
parts = {'col': col, 'all': base, 'list': [rows[0], rows[1]], 'host': host_rows}
parts['list'][0].fill_(7)
parts['host'][2] = 0
base[:5], host[-4:]
# %% look
parts['host'] is host_rows, shared[-4:], len(parts)
# %% del
del base, rows
parts['all'].sum(), col
# %% after-del
'base' in globals(), parts['col'] is col, torch.equal(parts['all'][1::4], col)
# %% mixing raises
parts['all'] + host
# %% mixing-ok
torch.tensor(2.) * parts['all'][:2], parts['all'][:2] + 1, (parts['all'] > 3).any()
# %% index-host
ids = torch.tensor([0, 3])
parts['all'][ids], parts['all'][ids.cuda()], parts['all'][[1, 2]]
# %% mask-error raises
host[parts['all'] > 3]
# %% layer-error raises
nn.Linear(12, 2)(parts['all'])
# %% numpy-error raises
np.asarray(parts['all'])
# %% moves
a = torch.ones(3)
b = a.cuda()
c = b.cpu()
d = b.to(gpu)
e = a.to('cpu')
a.add_(1)
b.mul_(5)
a, b, c, d is b, e is a
# %% moves-2
a, c, d
# %% dtype
h = b.half()
i = b.to(torch.int64)
j = b.to(dtype=torch.float64, device='cpu')
h.dtype, i, j, b.type(), b.double().device, h.cpu().numpy().dtype
# %% like
torch.zeros_like(b), b.new_ones(2), torch.empty_like(a).device, b.new_tensor([1, 2]), torch.full_like(b, 3, device='cpu')
# %% grad-across
w = torch.ones(3, requires_grad=True)
v = torch.full((3,), 2., device=gpu, requires_grad=True)
out = (w.cuda() * v).cpu().sum()
out.backward()
w.grad, v.grad
# %% grad-read
w.grad.device, v.grad.device, out
# %% accumulate
(w.to(gpu) + v).sum().backward()
w.grad, v.grad
# %% opt-two
opt = torch.optim.SGD([w, v], lr=0.1)
opt.step()
w.detach(), v.detach()
# %% split-model
class Split(nn.Module):
    """The first half stays on the host."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.front, self.back = nn.Linear(4, 6), nn.Linear(6, 1)
        self.back.to(gpu)
    def forward(self, x):
        return self.back(torch.relu(self.front(x)).to(gpu))
split = Split()
opt = torch.optim.Adam(split.parameters(), lr=0.05)
{k: v.device.type for k, v in split.state_dict().items()}
# %% split-train
x = torch.linspace(-1, 1, 20).view(5, 4)
for _ in range(5):
    loss = (split(x) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
print(f'{loss.item():.5f}', loss.device, opt.state[split.front.weight]['exp_avg'].device, opt.state[split.back.weight]['exp_avg'].device)
# %% front-only
with torch.no_grad():
    y = split.front(x)
y.mean(), y.device
# %% split-train-2 from=split-train
# %% to-host
split.to(cpu)
split.forward = lambda x: split.back(torch.relu(split.front(x)))
with torch.no_grad():
    print(split(x).device, split(x).mean())
# %% host-train
opt = torch.optim.SGD(split.parameters(), lr=0.05)
for _ in range(3):
    loss = (split(x) - 1).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
print(f'{loss.item():.5f}', loss.device)
# %% back-to-gpu
split.to(gpu)
del split.forward
split.front.to(cpu)
print(split(x).mean().item().__round__(5))
# %% pinned
p = torch.arange(4.).pin_memory()
q = p.to(gpu, non_blocking=True)
torch.cuda.synchronize()
p.is_pinned(), q, a.is_pinned()
# %% expand
s = torch.tensor([1., 2.], device=gpu)
big = s.expand(3, 2)
t = big.T
s[0] = 9
big, t.stride(), big.is_contiguous()
# %% strided
m = torch.arange(9., device=gpu).view(3, 3)
diag, upper = m.diagonal(), m.triu()
diag.add_(100)
m, upper
# %% strided-2
m.t_()
m[0, 1], diag[1] == m[1, 1], m.stride()
# %% out
buf = torch.empty(3, device=gpu)
r = torch.add(b, 1, out=buf)
r is buf, buf
# %% swap
b, a = a, b
a.device.type, b.device.type
# %% swap-back
a, b = b, a
torch.cat([a, b.cpu()]), torch.stack([b, b * 2])
# %% memory
gc.collect()
before = torch.cuda.memory_allocated()
blob = torch.zeros(256, 1024, device=gpu)
grown = torch.cuda.memory_allocated() - before
del blob
grown, torch.cuda.memory_allocated() - before
# %% nan
z = torch.tensor([0., float('nan'), float('inf')], device=gpu)
z.nan_to_num(posinf=9.), z.isnan(), torch.isfinite(z).sum()
# %% complex
k = torch.tensor([1 + 2j, 3 - 1j], device=gpu)
kc, kr = k.conj(), k.real
kr[0] = 5
k, kc, kc.is_conj()
# %% complex-2
kr, kc.resolve_conj(), torch.view_as_real(k)
# %% sparse
sp = torch.eye(3, device=gpu).to_sparse()
sp @ torch.ones(3, 1, device=gpu), sp.device
# %% sparse-2
(sp * 2).to_dense(), sp.coalesce().indices()
# %% scalars
n = torch.tensor(3, device=gpu)
list(range(n)), [10, 20, 30, 40][n], float(n) / 2, n.item() ** 2, bool(n)
# %% scalars-host
int(n), f'{n}', n.item()
