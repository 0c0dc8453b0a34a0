# Data sets, samplers, collate functions and loaders with workers defined in cells; batches go to the GPU.
# gpu-cells: 11
# %% imports
import random
from collections import Counter
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence
from torch.utils.data import (
    BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset, WeightedRandomSampler,
    default_collate, get_worker_info, random_split,
)
random.seed(1); np.random.seed(1); torch.manual_seed(1)
# %% dataset
class Words(Dataset):
    """Sequences of different lengths; the label is whether they have an even sum."""
    def __init__(self, n, transform=None):
        rng = np.random.RandomState(n)
        self.rows = [rng.randint(1, 30, size=rng.randint(3, 9)) for _ in range(n)]
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        item = torch.as_tensor(row), int(row.sum() % 2)
        return self.transform(item) if self.transform else item

words = Words(120)
words[3]
# %% collate
def pad(batch):
    batch.sort(key=lambda item: -len(item[0]))
    seqs, labels = zip(*batch)
    return pad_sequence(seqs, batch_first=True), torch.tensor([len(s) for s in seqs]), torch.tensor(labels)

loader = DataLoader(words, batch_size=16, shuffle=True, collate_fn=pad, num_workers=2, pin_memory=True,
                    generator=torch.Generator().manual_seed(3))
len(loader)
# %% first
ids, lengths, labels = next(iter(loader))
ids.shape, lengths.tolist(), labels.sum()
# %% model
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.GRU(8, 16, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(32, 2)
    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.emb(x), lengths.cpu(), batch_first=True)
        _, h = self.rnn(packed)
        return self.fc(torch.cat([h[0], h[1]], dim=1))
model = Encoder().to('cuda')
opt = torch.optim.RMSprop(model.parameters(), lr=1e-2)
# %% train
for epoch in range(2):
    running = 0
    for ids, lengths, labels in loader:
        ids, labels = ids.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(model(ids, lengths), labels)
        opt.zero_grad(); loss.backward(); opt.step()
        running += loss.item() * len(labels)
    print(epoch, round(running / len(words), 4), ids.device)
# %% train-again from=train
# %% sampler
class ByLength(Sampler):
    """Groups of similar lengths, groups in random order."""
    def __init__(self, data, size):
        self.data, self.size, self.epoch = data, size, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        order = sorted(range(len(self.data)), key=lambda i: len(self.data.rows[i]))
        groups = [order[i:i + self.size] for i in range(0, len(order), self.size)]
        random.Random(self.epoch).shuffle(groups)
        yield from groups
    def __len__(self):
        return -(-len(self.data) // self.size)

by_length = ByLength(words, 20)
grouped = DataLoader(words, batch_sampler=by_length, collate_fn=pad)
[len(b[0]) for b in grouped], grouped.batch_sampler is by_length
# %% grouped
model.train()
for epoch in range(2):
    by_length.set_epoch(epoch)
    waste = []
    for ids, lengths, labels in grouped:
        waste.append((ids == 0).float().mean())
        loss = nn.functional.cross_entropy(model(ids.to('cuda'), lengths), labels.to('cuda'))
        opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, f'{torch.stack(waste).mean():.4f}', f'{loss.item():.4f}')
# %% weighted
targets = [words[i][1] for i in range(len(words))]
counts = Counter(targets)
weights = [1.0 / counts[t] for t in targets]
weighted = WeightedRandomSampler(weights, 64, generator=torch.Generator().manual_seed(8))
counts, list(weighted)[:5]
# %% weighted-run
seen = Counter()
for ids, lengths, labels in DataLoader(words, 16, sampler=weighted, collate_fn=pad):
    with torch.no_grad():
        out = model(ids.cuda(), lengths).argmax(1)
    seen.update(labels.tolist())
sorted(seen.items()), out.device.type
# %% iterable
class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.n, step):
            yield torch.full((3,), float(i)), np.float32(i) / 2

def init(worker_id):
    random.seed(worker_id)
    np.random.seed(worker_id)

stream = DataLoader(Stream(12), batch_size=3, num_workers=2, worker_init_fn=init)
[b[0][:, 0].tolist() for b in stream]
# %% stream-gpu
total = torch.zeros(3, device='cuda')
for x, half in stream:
    total += x.cuda().sum(0) - half.cuda().sum()
total
# %% noisy
class Noisy(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        return {'x': torch.randn(2), 'u': random.random(), 'i': i, 'name': f'row{i}'}
noisy = DataLoader(Noisy(), batch_size=4, num_workers=2)
torch.manual_seed(77)
for b in noisy:
    print(b['i'].tolist(), b['name'], b['x'].sum().round(decimals=4), [round(v, 4) for v in b['u'].tolist()])
# %% noisy-gpu
torch.manual_seed(77)
for b in noisy:
    print(b['i'].tolist(), b['x'].cuda().sum(), [round(v, 4) for v in b['u'].tolist()])
# %% splits
torch.manual_seed(0)
train, rest = random_split(words, [0.75, 0.25])
both = ConcatDataset([train, Subset(words, range(5))])
len(train), len(rest), len(both), rest.indices[:5], train.dataset is words
# %% transform
shift = 1
def add_shift(item):
    return (item[0] + shift) % 30, item[1]
words.transform = add_shift
model.eval()
with torch.no_grad():
    right = sum((model(i.cuda(), n).argmax(1).cpu() == t).sum().item() for i, n, t in DataLoader(rest, 10, collate_fn=pad))
right
# %% shift-more
shift = 2
with torch.no_grad():
    scores = [model(i.cuda(), n).mean().item() for i, n, t in DataLoader(both, 40, collate_fn=pad, num_workers=1)]
[round(s, 5) for s in scores]
# %% worker-error raises
class Broken(Words):
    def __getitem__(self, i):
        if i == 5:
            raise ValueError(f'bad row {i}')
        return super().__getitem__(i)
model(*[t for t in next(iter(DataLoader(Broken(12), 12, collate_fn=pad)))][:2])
# %% persistent
persistent = DataLoader(words, 30, collate_fn=pad, num_workers=1, persistent_workers=True)
sizes = [[b[0].shape[1] for b in persistent] for _ in range(2)]
sizes
# %% drop
del persistent
model(*pad([words[i] for i in range(4)])[:2]) if False else next(model.parameters()).device
