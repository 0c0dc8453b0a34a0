# A small language model at inference: batches, half precision, a cache of keys and values, sampling and beam search.
# gpu-cells: 15
# %% imports
import math
import time
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("Using", device.type)
# %% corpus
text = """the cat sat on the mat . the dog sat on the log . a cat and a dog ran to the mat .
the log fell on the mat . a dog ran and the cat sat ."""
words = text.split()
vocab = ["<pad>", "<s>"] + sorted(set(words))
stoi = {w: i for i, w in enumerate(vocab)}
itos = {i: w for w, i in stoi.items()}
encode = lambda s: [stoi[w] for w in s.split()]
decode = lambda ids: " ".join(itos[int(i)] for i in ids)
Counter(words).most_common(4), len(vocab)
# %% model-code
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
            cache["k"], cache["v"] = k, v
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        if t > 1:
            mask = torch.ones(t, k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - t)
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, cache=None):
        x = x + self.attn(self.n1(x), cache)
        return x + self.mlp(self.n2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab_size, dim=32, heads=4, depth=2, context=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids, caches=None):
        past = caches[0]["k"].size(2) if caches and caches[0] else 0
        x = self.tok(ids) + self.pos(torch.arange(past, past + ids.size(1), device=ids.device))
        for i, block in enumerate(self.blocks):
            x = block(x, caches[i] if caches else None)
        return self.head(self.norm(x))
# %% build
model = TinyLM(len(vocab)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
model
# %% quick-fit
stream = torch.tensor(encode(text), device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    at = torch.randint(len(stream) - 9, (16,))
    batch = torch.stack([stream[i : i + 9] for i in at])
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1:3d}  loss {loss.item():.4f}")
model.eval();
# %% tied
model.head.weight is model.tok.weight, model.head.weight.data_ptr() == model.tok.weight.data_ptr()
# %% greedy
@torch.inference_mode()
def generate(prompt, n, use_cache=True):
    ids = torch.tensor([encode(prompt)], device=device)
    caches = [{} for _ in model.blocks] if use_cache else None
    feed = ids
    for _ in range(n):
        logits = model(feed, caches)[:, -1]
        nxt = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
        feed = nxt if use_cache else ids
    return ids[0]

with_cache = generate("the cat", 8)
without = generate("the cat", 8, use_cache=False)
print(decode(with_cache))
torch.equal(with_cache, without)
# %% keep-cache
# the caches stay alive between cells, as one does when one looks at every step
caches = [{} for _ in model.blocks]
with torch.no_grad():
    logits = model(torch.tensor([encode("a dog ran")], device=device), caches)
generated = [int(logits[0, -1].argmax())]
{name: tuple(t.shape) for name, t in caches[0].items()}
# %% one-more
with torch.no_grad():
    logits = model(torch.tensor([[generated[-1]]], device=device), caches)
generated.append(int(logits[0, -1].argmax()))
print(decode(generated), caches[0]["k"].shape)
# %% one-more-again from=one-more
# %% one-more-third from=one-more
# %% sampling
def sample(prompt, n=6, temperature=0.8, top_k=4, generator=None):
    ids = torch.tensor([encode(prompt)], device=device)
    with torch.no_grad():
        for _ in range(n):
            logits = model(ids)[:, -1] / temperature
            kept, where = logits.topk(top_k)
            choice = torch.multinomial(kept.softmax(-1), 1, generator=generator)
            ids = torch.cat([ids, where.gather(1, choice)], 1)
    return decode(ids[0])

g = torch.Generator(device=device).manual_seed(7)
for _ in range(3):
    print("-", sample("the dog", generator=g))
# %% sampling-goes-on
# same generator: goes on where the last cell ended
print(sample("the dog", generator=g))
print(sample("the dog", generator=g.manual_seed(7)))
# %% beam
@torch.no_grad()
def beam_search(prompt, width=3, steps=5):
    beams = [(0.0, encode(prompt))]
    for _ in range(steps):
        ids = torch.tensor([seq for _, seq in beams], device=device)
        logp = model(ids)[:, -1].log_softmax(-1)
        scores = logp + torch.tensor([[s] for s, _ in beams], device=device)
        best = scores.flatten().topk(width)
        beams = [
            (value, beams[index // len(vocab)][1] + [index % len(vocab)])
            for value, index in zip(best.values.tolist(), best.indices.tolist())
        ]
    return beams

for score, seq in beam_search("a cat"):
    print(f"{score:8.3f}  {decode(seq)}")
# %% half
half = TinyLM(len(vocab)).to(device)
half.load_state_dict(model.state_dict())
half.half().eval()
ids = torch.tensor([encode("the cat sat on"), encode("a dog ran to")], device=device)
with torch.inference_mode():
    a, b = model(ids), half(ids)
print(a.dtype, b.dtype, f"max diff {(a - b.float()).abs().max().item():.4f}")
(a.argmax(-1) == b.argmax(-1)).float().mean()
# %% inference-tensor
# tensors made under inference_mode stay what they are in later cells
print(a.is_inference(), a.requires_grad)
try:
    a.requires_grad_(True)
except RuntimeError as e:
    print(type(e).__name__, str(e).split(".")[0])
# %% padded-batches
def batches(prompts, size):
    for start in range(0, len(prompts), size):
        chunk = [encode(p) for p in prompts[start : start + size]]
        width = max(map(len, chunk))
        ids = torch.tensor([c + [0] * (width - len(c)) for c in chunk])
        yield ids, torch.tensor([len(c) for c in chunk])

prompts = ["the cat", "a dog ran", "the log fell on", "a", "the mat ."]
results = []
with torch.autocast(device.type, dtype=torch.bfloat16), torch.no_grad():
    for ids, lengths in batches(prompts, 2):
        out = model(ids.to(device, non_blocking=True))
        last = out[torch.arange(len(ids), device=device), (lengths - 1).to(device)]
        results.append(last.float().softmax(-1).max(-1))
for p, r in zip(prompts, (i for r in results for i in r.indices.tolist())):
    print(f"{p!r:20} -> {itos[r]}")
# %% perplexity
nll = F.cross_entropy(model(stream[None, :20])[0, :-1], stream[1:20], reduction="none")
print(f"perplexity {nll.mean().exp().item():.3f}")
nll.detach().cpu().numpy().round(2)
