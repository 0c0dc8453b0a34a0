# A Trainer class with callbacks and early stopping, evaluation with a confusion matrix, the class redefined halfway.
# gpu-cells: 13
# %% imports
import copy
import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from sklearn.metrics import classification_report, confusion_matrix
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
# %% seed
SEED = 1234
torch.manual_seed(SEED)
np.random.seed(SEED)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
device
# %% data
points, classes = make_moons(600, noise=0.25, random_state=SEED)
full = TensorDataset(torch.tensor(points, dtype=torch.float32), torch.tensor(classes))
train_set, valid_set = random_split(full, [480, 120], generator=torch.Generator().manual_seed(SEED))
train_loader = DataLoader(train_set, batch_size=48, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=120)
len(train_loader), len(valid_loader)
# %% config
@dataclass
class Config:
    lr: float = 0.05
    epochs: int = 6
    hidden: tuple = (16, 16)
    patience: int = 2
    tags: list = field(default_factory=list)

cfg = Config(tags=["moons"])
cfg
# %% net
class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        dims = [2, *sizes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(dims[-1], 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)

net = Net(cfg.hidden)
sum(p.numel() for p in net.parameters() if p.requires_grad)
# %% trainer
class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, math.inf, 0, None

    def __call__(self, value, model):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


class Trainer:
    def __init__(self, model, cfg, device):
        self.model = model.to(device)
        self.device = device
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.log = defaultdict(list)
        self.callbacks = []
        self.epoch = 0

    def step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        total, right = 0.0, 0
        for x, y in loader:
            out = self.model(x.to(self.device))
            total += F.cross_entropy(out, y.to(self.device), reduction="sum").item()
            right += (out.argmax(1).cpu() == y).sum().item()
        self.model.train()
        n = len(loader.dataset)
        return total / n, right / n

    def fit(self, loader, valid, epochs):
        for _ in range(epochs):
            losses = [self.step(b) for b in loader]
            self.epoch += 1
            vloss, acc = self.evaluate(valid)
            self.log["train"].append(torch.stack(losses).mean().item())
            self.log["valid"].append(vloss)
            self.log["acc"].append(acc)
            print(f"epoch {self.epoch:2d} | train {self.log['train'][-1]:.4f} | valid {vloss:.4f} | acc {acc:.3f}")
            if any(cb(vloss, self.model) for cb in self.callbacks):
                print("stopping")
                break
# %% make
trainer = Trainer(net, cfg, device)
stopper = EarlyStopping(cfg.patience)
trainer.callbacks.append(stopper)
next(net.parameters()).device, trainer.model is net
# %% fit
trainer.fit(train_loader, valid_loader, cfg.epochs)
# %% log
{k: [round(v, 4) for v in vs] for k, vs in trainer.log.items()}
# %% same
net is trainer.model, stopper is trainer.callbacks[0], stopper.bad, int(net.calls)
# %% mutate
cfg.lr = 0.005
cfg.tags.append("slow")
for group in trainer.opt.param_groups:
    group["lr"] = cfg.lr
trainer.opt.param_groups[0]["lr"], cfg
# %% fit-more from=fit
# %% confusion
net.eval()
with torch.inference_mode():
    xs = torch.stack([x for x, _ in valid_set]).to(device)
    ys = torch.tensor([int(y) for _, y in valid_set])
    predicted = net(xs).argmax(dim=-1)
    matrix = confusion_matrix(ys, predicted.cpu())
net.train()
print(matrix)
print(classification_report(ys, predicted.cpu(), digits=3))
# %% redefine
class Trainer(Trainer):
    """Adds gradient clipping; the old object keeps its class."""

    def step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        loss = F.cross_entropy(self.model(x), y, label_smoothing=0.1)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.log["norm"].append(float(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)))
        self.opt.step()
        return loss.detach()

type(trainer) is Trainer, isinstance(trainer, Trainer), Trainer.__mro__[1] is type(trainer)
# %% second
second = Trainer(copy.deepcopy(net), cfg, device)
second.fit(train_loader, valid_loader, 2)
len(second.log["norm"]), round(sum(second.log["norm"]), 3)
# %% old
trainer.fit(train_loader, valid_loader, 1)
"norm" in trainer.log
# %% adopt
trainer.__class__ = Trainer
trainer.fit(train_loader, valid_loader, 1)
len(trainer.log["norm"])
# %% best
net.load_state_dict(stopper.state)
loss, acc = trainer.evaluate(valid_loader)
print(f"{loss:.5f} {acc:.4f} {stopper.best:.5f}")
# %% spread
weights = {name: p.detach().cpu().clone() for name, p in net.named_parameters()}
{name: (tuple(w.shape), round(w.std().item(), 4)) for name, w in weights.items()}
# %% on-host
host = copy.deepcopy(net).cpu()
with torch.no_grad():
    logits = host(torch.tensor([[0.0, 0.5], [1.0, -0.5]]))
logits.softmax(-1)
