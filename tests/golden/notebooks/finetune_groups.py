# Fine-tuning: a body trained first, then frozen, a new head, groups of parameters with rates of their own, unfreezing.
# gpu-cells: 16
# %% setup
import torch, random, numpy as np
import torch.nn as nn
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, confusion_matrix
def set_seed(seed):
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
set_seed(42)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
# %% data
d = load_digits()
X = torch.from_numpy(d.images).float().div(16).unsqueeze(1)
y = torch.from_numpy(d.target)
old, new = y < 5, y >= 5
X.shape, int(old.sum()), int(new.sum())
# %% model
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(self.pool(self.block2(self.block1(x))).flatten(1))

class Classifier(nn.Module):
    def __init__(self, body, classes):
        super().__init__()
        self.body = body
        self.fc = nn.Linear(64, classes)
    def forward(self, x):
        return self.fc(self.body(x))
# %% pretrain-setup
model = Classifier(Body(), 5)
model = model.to(DEVICE)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
# %% loop
def run_epoch(model, X, y, optimizer=None, batch_size=128):
    train = optimizer is not None
    model.train(train)
    total, correct = 0., 0
    order = torch.randperm(len(X)) if train else torch.arange(len(X))
    with torch.set_grad_enabled(train):
        for i in range(0, len(X), batch_size):
            idx = order[i:i + batch_size]
            xb, yb = X[idx].to(DEVICE), y[idx].to(DEVICE)
            out = model(xb)
            loss = criterion(out, yb)
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(idx)
            correct += (out.argmax(1) == yb).sum().item()
    return total / len(X), correct / len(X)
# %% pretrain
for epoch in range(3):
    tr = run_epoch(model, X[old], y[old], optimizer)
    print(f'Epoch {epoch+1}: loss={tr[0]:.4f} acc={tr[1]:.4f}')
# %% eval-old
va = run_epoch(model, X[old], y[old])
print('eval %.4f %.4f' % va, model.training)
# %% freeze
for p in model.body.parameters():
    p.requires_grad = False
model.fc = nn.Linear(64, 5)
nn.init.xavier_uniform_(model.fc.weight)
model.to(DEVICE)
trainable = [n for n, p in model.named_parameters() if p.requires_grad]
frozen_copy = {k: v.clone() for k, v in model.body.state_dict().items()}
trainable
# %% head-only
optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
for epoch in range(2):
    print('loss=%.4f acc=%.4f' % run_epoch(model, X[new], y[new] - 5, optimizer))
# %% unchanged
same = {k: torch.equal(v, frozen_copy[k]) for k, v in model.body.state_dict().items()}
same
# %% unfreeze
for p in model.body.block2.parameters():
    p.requires_grad_(True)
optimizer.add_param_group({'params': model.body.block2.parameters(), 'lr': 0.01})
[(len(g['params']), g['lr'], g['momentum']) for g in optimizer.param_groups]
# %% train-two
for epoch in range(2):
    print('loss=%.4f acc=%.4f' % run_epoch(model, X[new], y[new] - 5, optimizer))
[sorted(s) for s in optimizer.state.values()][:2], len(optimizer.state)
# %% discriminative
def layer_groups(model, base_lr, factor=0.5):
    groups, lr = [], base_lr
    for part in [model.fc, model.body.block2, model.body.block1]:
        decay = [p for p in part.parameters() if p.ndim > 1]
        plain = [p for p in part.parameters() if p.ndim <= 1]
        groups += [{'params': decay, 'lr': lr, 'weight_decay': 0.01}, {'params': plain, 'lr': lr, 'weight_decay': 0.}]
        lr *= factor
    return groups
model.requires_grad_(True)
optimizer = torch.optim.AdamW(layer_groups(model, 5e-3))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=[lambda e, s=s: 0.9 ** (e * s) for s in (1, 1, 2, 2, 3, 3)])
len(optimizer.param_groups)
# %% finetune
history = []
for epoch in range(3):
    history.append(run_epoch(model, X[new], y[new] - 5, optimizer))
    scheduler.step()
    print(epoch, '%.4f %.4f' % history[-1], ['%.6f' % lr for lr in scheduler.get_last_lr()[::2]])
# %% matrix
model.eval()
with torch.no_grad():
    preds = torch.cat([model(part.to(DEVICE)).argmax(1).cpu() for part in X[new].split(200)])
print(round(accuracy_score(y[new] - 5, preds), 4))
confusion_matrix(y[new] - 5, preds)
# %% worst
wrong = (preds != y[new] - 5).nonzero().flatten()
wrong[:10], history[-1][1] > 0.5
# %% bn
bn = model.body.block1[1]
bn.running_mean[:3].cpu(), bn.num_batches_tracked.item(), bn.weight.requires_grad
# %% cpu-train
cpu_model = Classifier(Body(), 5)
cpu_model.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
cpu_opt = torch.optim.SGD(cpu_model.parameters(), lr=0.01)
for _ in range(2):
    loss = criterion(cpu_model(X[new][:64]), y[new][:64] - 5)
    cpu_opt.zero_grad(); loss.backward(); cpu_opt.step()
    print(f"{loss.item():.4f}")
# %% back
model.load_state_dict(cpu_model.state_dict())
print('%.4f %.4f' % run_epoch(model, X[new], y[new] - 5))
# %% swap
model, teacher = Classifier(model.body, 10).to(DEVICE), model
model.body is teacher.body, model.fc.out_features, teacher.fc.out_features
# %% distill
opt = torch.optim.Adam(model.fc.parameters(), lr=1e-2)
for _ in range(3):
    xb = X[:256].to(DEVICE)
    with torch.no_grad():
        soft = teacher(xb).softmax(-1)
    loss = nn.functional.kl_div(model(xb)[:, 5:].log_softmax(-1), soft, reduction='batchmean')
    opt.zero_grad(); loss.backward(); opt.step()
print(f"{loss:.4f}")
