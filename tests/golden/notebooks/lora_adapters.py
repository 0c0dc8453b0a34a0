# Low-rank adapters: linear layers wrapped in place, only the adapters trained, saved apart, merged, taken out again.
# gpu-cells: 17
# %% imports
import math, io, os
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(7)
device = torch.device('cuda')
# %% base
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

class Tiny(nn.Module):
    def __init__(self, vocab=20, dim=32, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

base = Tiny().to(device)
base.head.weight is base.embed.weight
# %% tied
base.head.weight is base.embed.weight, len(list(base.parameters())), base.head.weight.data_ptr() == base.embed.weight.data_ptr()
# %% lora
class LoRALinear(nn.Module):
    def __init__(self, inner, r=4, alpha=8):
        super().__init__()
        self.inner = inner
        self.scale = alpha / r
        self.A = nn.Parameter(torch.empty(r, inner.in_features, device=inner.weight.device))
        self.B = nn.Parameter(torch.zeros(inner.out_features, r, device=inner.weight.device))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        for p in self.inner.parameters():
            p.requires_grad = False

    def forward(self, x):
        return self.inner(x) + (x @ self.A.T @ self.B.T) * self.scale

    @torch.no_grad()
    def merge(self):
        self.inner.weight += self.scale * self.B @ self.A
        return self.inner

def inject(model, targets=('q_proj', 'v_proj'), **kw):
    wrapped = []
    for name, module in list(model.named_modules()):
        for child, layer in list(module.named_children()):
            if child in targets and isinstance(layer, nn.Linear):
                setattr(module, child, LoRALinear(layer, **kw))
                wrapped.append(f'{name}.{child}')
    return wrapped
# %% before
ids = torch.randint(0, 20, (4, 12), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    before = base(ids.to(device))
before.sum().item().__round__(3)
# %% inject
base.requires_grad_(False)
wrapped = inject(base, r=2)
wrapped
# %% neutral
with torch.no_grad():
    same = torch.allclose(base(ids.to(device)), before)
same, [n for n, p in base.named_parameters() if p.requires_grad][:3]
# %% counts
trainable = sum(p.numel() for p in base.parameters() if p.requires_grad)
total = sum(p.numel() for p in base.parameters())
print(f'trainable: {trainable} of {total} ({100 * trainable / total:.2f} %)')
# %% data
def make_batch(n, generator):
    start = torch.randint(0, 20, (n, 1), generator=generator)
    seq = (start + torch.arange(13) * 3) % 20
    return seq[:, :-1], seq[:, 1:]
gen = torch.Generator().manual_seed(2)
# %% optimizer
optimizer = torch.optim.AdamW([p for p in base.parameters() if p.requires_grad], lr=2e-2)
sched = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=30)
base.train();
# %% tune
for it in range(15):
    x, y = make_batch(16, gen)
    loss = F.cross_entropy(base(x.to(device)).flatten(0, 1), y.to(device).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sched.step()
    if it % 5 == 0: print(it, f'{loss.item():.4f}', f"{optimizer.param_groups[0]['lr']:.5f}")
# %% tune-more from=tune
# %% grads
{n: p.grad is not None for n, p in base.named_parameters() if 'blocks.0.attn' in n}
# %% adapters
def lora_state(model):
    return {n: p.detach().cpu() for n, p in model.named_parameters() if n.rsplit('.', 1)[-1] in 'AB'}
saved = lora_state(base)
{k: tuple(v.shape) for k, v in saved.items()}
# %% disk
torch.save(saved, 'adapter.pt')
os.path.getsize('adapter.pt') > 0, sorted(torch.load('adapter.pt'))[:2]
# %% zero
with torch.no_grad():
    for m in base.modules():
        if isinstance(m, LoRALinear):
            m.B.zero_()
    again = torch.allclose(base(ids.to(device)), before)
again
# %% reload
result = base.load_state_dict(torch.load('adapter.pt', map_location=device), strict=False)
len(result.missing_keys), result.unexpected_keys
# %% score
base.eval()
with torch.no_grad():
    x, y = make_batch(32, torch.Generator().manual_seed(3))
    tuned = base(x.to(device))
    acc = (tuned.argmax(-1).cpu() == y).float().mean()
f'{acc:.4f}'
# %% merge
def unwrap(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoRALinear):
                setattr(module, name, child.merge())
with torch.no_grad():
    unwrap(base)
    merged = base(x.to(device))
torch.allclose(merged, tuned, atol=1e-4), any(isinstance(m, LoRALinear) for m in base.modules())
# %% tied-still
base.head.weight is base.embed.weight, base.blocks[0].attn.q_proj
# %% cpu-copy
import copy
host = copy.deepcopy(base).to('cpu')
with torch.no_grad():
    out = host(x)
torch.allclose(out, merged.cpu(), atol=1e-4), host.head.weight is host.embed.weight
# %% cleanup
os.remove('adapter.pt')
