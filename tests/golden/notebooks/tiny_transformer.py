# A small transformer written out: masks, positional buffers, einsum, cached attention maps, beam search, ablated heads.
# gpu-cells: 15
# %% imports
import copy, heapq, math
from typing import NamedTuple, Optional
import torch
from torch import nn, Tensor
import torch.nn.functional as F
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("using", device)
# %% task
PAD, BOS, EOS = 0, 1, 2
def make_pairs(n, generator):
    """Reverse a short sequence."""
    src = torch.full((n, 8), PAD)
    tgt = torch.full((n, 9), PAD)
    for i in range(n):
        k = int(torch.randint(3, 7, (1,), generator=generator))
        s = torch.randint(3, 12, (k,), generator=generator)
        src[i, :k] = s
        tgt[i, :k + 2] = torch.cat([torch.tensor([BOS]), s.flip(0), torch.tensor([EOS])])
    return src, tgt
src, tgt = make_pairs(64, torch.Generator().manual_seed(4))
src[0], tgt[0]
# %% blocks
class PositionalEncoding(nn.Module):
    def __init__(self, d, length=32):
        super().__init__()
        pos = torch.arange(length).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(1e4) / d))
        pe = torch.zeros(length, d)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe, persistent=False)
    def forward(self, x):
        return x + self.pe[:x.size(1)]

class MultiHead(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dk = h, d // h
        self.linears = nn.ModuleList([nn.Linear(d, d) for _ in range(4)])
        self.attn: Optional[Tensor] = None
        self.keep = None
    def forward(self, q, k, v, mask=None):
        b = q.size(0)
        q, k, v = [lin(x).view(b, -1, self.h, self.dk) for lin, x in zip(self.linears, (q, k, v))]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.dk)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
        self.attn = scores.softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", self.attn, v)
        if self.keep is not None:
            out = out * self.keep.view(1, 1, -1, 1)
        return self.linears[-1](out.reshape(b, -1, self.h * self.dk))
# %% model
class Layer(nn.Module):
    def __init__(self, d, h, cross=False):
        super().__init__()
        self.self_attn = MultiHead(d, h)
        self.cross = MultiHead(d, h) if cross else None
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
    def forward(self, x, mask, memory=None, memory_mask=None):
        y = self.norms[0](x)
        x = x + self.self_attn(y, y, y, mask)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory, memory, memory_mask)
        return x + self.ff(self.norms[2](x))

class Seq2Seq(nn.Module):
    def __init__(self, vocab=12, d=32, h=4, n=1):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = PositionalEncoding(d)
        proto = Layer(d, h, cross=True)
        self.encoder = nn.ModuleList(Layer(d, h) for _ in range(n))
        self.decoder = nn.ModuleList(copy.deepcopy(proto) for _ in range(n))
        self.out = nn.Linear(d, vocab)
    def encode(self, src):
        mask = (src != PAD).unsqueeze(1)
        x = self.pos(self.embed(src))
        for layer in self.encoder:
            x = layer(x, mask)
        return x, mask
    def decode(self, tgt, memory, mask):
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device).tril()
        x = self.pos(self.embed(tgt))
        for layer in self.decoder:
            x = layer(x, causal.unsqueeze(0), memory, mask)
        return self.out(x)
    def forward(self, src, tgt):
        return self.decode(tgt, *self.encode(src))

net = Seq2Seq().to(device)
f"{sum(p.numel() for p in net.parameters()):,}", "pos.pe" in net.state_dict(), net.pos.pe.device
# %% optimizer
class NoamOpt:
    """Not a torch scheduler: keeps the rate itself."""
    def __init__(self, d, factor, warmup, optimizer):
        self.optimizer, self._step, self.warmup, self.factor, self.d, self._rate = optimizer, 0, warmup, factor, d, 0
    def step(self):
        self._step += 1
        self._rate = self.rate()
        for p in self.optimizer.param_groups:
            p["lr"] = self._rate
        self.optimizer.step()
    def rate(self, step=None):
        step = step or self._step
        return self.factor * self.d ** -0.5 * min(step ** -0.5, step * self.warmup ** -1.5)
noam = NoamOpt(32, 0.5, 20, torch.optim.Adam(net.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9))
[round(noam.rate(i), 5) for i in (1, 10, 20, 40)]
# %% train
def run(steps):
    net.train()
    for i in range(steps):
        idx = torch.arange(i * 16, i * 16 + 16) % 64
        s, t = src[idx].to(device), tgt[idx].to(device)
        logits = net(s, t[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), t[:, 1:], ignore_index=PAD, label_smoothing=0.05)
        noam.optimizer.zero_grad()
        loss.backward()
        noam.step()
    return loss.item()
for _ in range(2):
    print(f"step {noam._step} loss {run(10):.4f} lr {noam._rate:.6f}")
# %% more
print(f"step {noam._step} loss {run(20):.4f} lr {noam._rate:.6f}")
# %% rate
noam._step, round(noam._rate, 6), noam.optimizer.param_groups[0]["lr"] == noam._rate
# %% decode
@torch.no_grad()
def greedy(model, src, max_len=9):
    model.eval()
    memory, mask = model.encode(src)
    ys = torch.full((src.size(0), 1), BOS, device=src.device, dtype=torch.long)
    for _ in range(max_len - 1):
        nxt = model.decode(ys, memory, mask)[:, -1].argmax(-1, keepdim=True)
        ys = torch.cat([ys, nxt], dim=1)
    return ys
greedy(net, src[:2].to(device)).tolist()
# %% exact
guess = greedy(net, src.to(device))
token_acc = ((guess[:, 1:] == tgt[:, 1:].to(device)) & (tgt[:, 1:] != PAD).to(device)).sum() / (tgt[:, 1:] != PAD).sum()
f"{token_acc.item():.4f}", guess.device, guess.shape
# %% attention
maps = net.decoder[0].cross.attn
maps.shape, maps.requires_grad, maps.sum(-1).allclose(torch.ones_like(maps.sum(-1)))
# %% attention-cpu
picture = maps[0].mean(0).cpu()
picture.argmax(-1).tolist(), picture.dtype
# %% ablate
scores = {}
for head in range(4):
    keep = torch.ones(4, device=device)
    keep[head] = 0
    net.decoder[0].cross.keep = keep
    with torch.no_grad():
        logits = net(src.to(device), tgt[:, :-1].to(device))
        scores[head] = F.cross_entropy(logits.transpose(1, 2), tgt[:, 1:].to(device), ignore_index=PAD).item()
net.decoder[0].cross.keep = None
{k: round(v, 4) for k, v in scores.items()}
# %% beam
class Hyp(NamedTuple):
    score: float
    tokens: tuple
@torch.no_grad()
def beam(model, one, width=3, max_len=9):
    memory, mask = model.encode(one)
    beams = [Hyp(0.0, (BOS,))]
    for _ in range(max_len - 1):
        grown = []
        for hyp in beams:
            if hyp.tokens[-1] == EOS:
                grown.append(hyp)
                continue
            logp = model.decode(torch.tensor([hyp.tokens], device=one.device), memory, mask)[0, -1].log_softmax(-1)
            top = logp.topk(width)
            grown += [Hyp(hyp.score + s, hyp.tokens + (i,)) for s, i in zip(top.values.tolist(), top.indices.tolist())]
        beams = heapq.nlargest(width, grown)
    return beams
hyps = beam(net, src[:1].to(device))
[(round(h.score, 3), h.tokens) for h in hyps]
# %% hyps
max(hyps).tokens, type(hyps[0]).__name__, hyps[0]._fields
# %% redefine
class MultiHead(MultiHead):
    """With a bias for near positions."""
    def forward(self, q, k, v, mask=None):
        bias = -(torch.arange(q.size(1), device=q.device)[:, None] - torch.arange(k.size(1), device=q.device)).abs()
        self.bias = bias.float()
        return super().forward(q, k, v, mask)
isinstance(net.encoder[0].self_attn, MultiHead), MultiHead.__mro__[1].__doc__
# %% graft
new = MultiHead(32, 4).to(device)
new.load_state_dict(net.encoder[0].self_attn.state_dict())
old, net.encoder[0].self_attn = net.encoder[0].self_attn, new
net.eval()
with torch.no_grad():
    a = net(src[:4].to(device), tgt[:4, :-1].to(device))
    net.encoder[0].self_attn = old
    b = net(src[:4].to(device), tgt[:4, :-1].to(device))
torch.equal(a, b), type(new).__mro__[1] is type(old), new.bias.shape
# %% builtin
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), 2).to(device)
x = net.pos(net.embed(src[:8].to(device)))
y = enc(x, src_key_padding_mask=(src[:8] == PAD).to(device))
y.pow(2).mean().backward()
y.shape, net.embed.weight.grad is not None, round(enc.layers[1].linear2.weight.grad.norm().item(), 5)
# %% sdpa
q = torch.randn(2, 4, 5, 8, device=device, generator=torch.Generator(device).manual_seed(1))
fast = F.scaled_dot_product_attention(q, q, q, is_causal=True)
slow = ((q @ q.mT) / 8 ** 0.5).masked_fill(~torch.ones(5, 5, dtype=torch.bool, device=device).tril(), -torch.inf).softmax(-1) @ q
torch.allclose(fast, slow, atol=1e-5)
