# Gradient accumulation over four small batches, with clipping and a cosine schedule.
# gpu-cells: 4
# %% setup
import torch
from torch import nn
torch.manual_seed(3)
data = torch.randn(64, 10)
target = (data.sum(1) > 0).long()
# %% model
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 2)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
model
# %% train
for step in range(4):
    optimizer.zero_grad(set_to_none=True)
    for part, goal in zip(data.chunk(4), target.chunk(4)):
        loss = nn.functional.cross_entropy(model(part.cuda()), goal.cuda()) / 4
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
    print(step, f"{loss.item():.4f} {norm.item():.4f} {schedule.get_last_lr()[0]:.5f}")
# %% train-again from=train
# %% check
with torch.no_grad():
    accuracy = (model(data.cuda()).argmax(1).cpu() == target).float().mean()
accuracy
