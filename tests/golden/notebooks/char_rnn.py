# A character model: LSTM with carried hidden state, truncated backpropagation, sampling, gradient norms, weight tying.
# gpu-cells: 17
# %% imports
import math, string, time
import torch
import torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(1111)
if torch.cuda.is_available():
    torch.cuda.manual_seed(1111)
device = 'cuda'
# %% corpus
text = "the cat sat on the mat. the dog sat on the log. a cat and a dog ran to the hill. " * 12
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
itos = {i: c for c, i in stoi.items()}
encode = lambda s: torch.tensor([stoi[c] for c in s])
decode = lambda ids: ''.join(itos[int(i)] for i in ids)
decode(encode('the cat')), len(chars), len(text)
# %% batchify
def batchify(ids, bsz):
    n = ids.size(0) // bsz
    return ids[:n * bsz].view(bsz, -1).t().contiguous()

train_data = batchify(encode(text), 8).to(device)
train_data.shape, train_data[:3, 0].tolist()
# %% model
class RNNModel(nn.Module):
    def __init__(self, rnn_type, ntoken, ninp, nhid, nlayers, dropout=0.1, tie=False):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.drop = nn.Dropout(dropout)
        self.rnn = getattr(nn, rnn_type)(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        if tie:
            self.decoder.weight = self.encoder.weight
        self.rnn_type, self.nhid, self.nlayers = rnn_type, nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(out)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        zeros = lambda: weight.new_zeros(self.nlayers, bsz, self.nhid)
        return (zeros(), zeros()) if self.rnn_type == 'LSTM' else zeros()

model = RNNModel('LSTM', len(chars), 24, 24, 2, tie=True).to(device)
criterion = nn.CrossEntropyLoss()
model.rnn.flatten_parameters()
model
# %% helpers
def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)

def get_batch(source, i, bptt=12):
    n = min(bptt, len(source) - 1 - i)
    return source[i:i + n], source[i + 1:i + 1 + n].reshape(-1)

lr, clip = 2.0, 0.25
hidden = None
# %% train
def train_epoch(log_every=4):
    global hidden
    model.train()
    total, start = 0., time.time()
    if hidden is None:
        hidden = model.init_hidden(8)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, 12)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, len(chars)), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % log_every == 0 and batch > 0:
            print(f'| {batch:2d} batches | lr {lr:.2f} | loss {total / batch:5.3f} | ppl {math.exp(total / batch):7.2f} | norm {norm:.3f}')
    return total / (batch + 1)
# %% epoch-1
losses = [train_epoch()]
# %% hidden
[tuple(h.shape) for h in hidden], hidden[0].device, hidden[0].grad_fn is None, hidden[0].abs().mean()
# %% epoch-2
losses.append(train_epoch())
# %% anneal
if losses[-1] > losses[-2] * 0.9:
    lr /= 2
lr, [round(v, 4) for v in losses]
# %% epoch-3
losses.append(train_epoch(100))
print(round(losses[-1], 4))
# %% sample
@torch.no_grad()
def sample(prompt, n, temperature=1.0, generator=None):
    model.eval()
    h = model.init_hidden(1)
    ids = encode(prompt).to(device).unsqueeze(1)
    out, h = model(ids, h)
    picked = []
    for _ in range(n):
        p = F.softmax(out[-1, 0] / temperature, dim=-1)
        nxt = torch.multinomial(p, 1, generator=generator)
        picked.append(nxt.item())
        out, h = model(nxt.view(1, 1), h)
    model.train()
    return prompt + decode(picked)
sample('the ', 30)
# %% sample-seeded
g = torch.Generator(device=device).manual_seed(7)
one = sample('a cat', 20, 0.8, g)
one
# %% sample-next
sample('a cat', 20, 0.8, g), sample('a cat', 20, 0.8, torch.Generator(device=device).manual_seed(7)) == one
# %% greedy
def greedy(prompt, n=25):
    return sample(prompt, n, temperature=1e-3)
greedy('the dog')
# %% tied
model.decoder.weight is model.encoder.weight, len(list(model.parameters())), sum(p.numel() for p in model.parameters())
# %% grads
{n: round(p.grad.norm().item(), 4) for n, p in model.named_parameters() if 'l0' in n}
# %% gru
gru = RNNModel('GRU', len(chars), 16, 20, 1).to(device)
opt = torch.optim.Adam(gru.parameters(), 1e-2)
h = gru.init_hidden(8)
for i in range(0, 36, 12):
    data, targets = get_batch(train_data, i)
    h = repackage(h)
    out, h = gru(data, h)
    loss = criterion(out.flatten(0, 1), targets)
    opt.zero_grad(); loss.backward(); opt.step()
print(f'{loss.item():.4f}', type(h).__name__, tuple(h.shape))
# %% gru-more
data, targets = get_batch(train_data, 36)
h = repackage(h)
out, h = gru(data, h)
f'{criterion(out.flatten(0, 1), targets).item():.4f}'
# %% graph-refused
h2 = h.detach()
h.requires_grad, h2.requires_grad
# %% one-hot
onehot = F.one_hot(train_data[:5, 0], len(chars)).float()
(onehot @ model.encoder.weight.detach()).sub(model.encoder(train_data[:5, 0])).abs().max().item()
# %% cpu-model
model_cpu = RNNModel('LSTM', len(chars), 24, 24, 2, tie=True)
model_cpu.load_state_dict(model.state_dict())
model_cpu.eval(); model.eval()
with torch.no_grad():
    a, _ = model_cpu(encode('the').unsqueeze(1), model_cpu.init_hidden(1))
    b, _ = model(encode('the').unsqueeze(1).to(device), model.init_hidden(1))
torch.allclose(a, b.cpu(), atol=1e-5), model_cpu.decoder.weight is model_cpu.encoder.weight
