# Twelve cells whose labels are wrong: CPU cells that use the GPU by ways that no text shows, and the reverse.
# gpu-cells: 16
# run-again: 9
# %% setup
import argparse, json, random
import numpy as np
import torch
import torch.nn as nn
torch.manual_seed(0); random.seed(0); np.random.seed(0)
seen, t = [], torch.arange(4.)
args = argparse.Namespace(**json.loads('{"use": false, "steps": 0, "where": "cuda"}'))
# %% helper
%%writefile own_moves.py
import torch

def up(x):
    return x.cuda()

def careful(x):
    try:
        return x.cuda()
    except Exception:
        return x

def stubborn(x):
    try:
        return x.cuda()
    except:
        print('no GPU then')
        return x

def improve(model, steps):
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 3).cuda()) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()

def same(x, device):
    return x.to(device)
# %% import
import own_moves
# %% wrong-helper
seen.append('helper'); print('before', seen)
a = own_moves.up(t)
print('after', a.device)
len(seen)
# %% wrong-name-made-up
seen.append('name')
drawn = random.random(), np.random.rand(), torch.rand(2)
b = getattr(t, 'cu' + 'da')() * 2
drawn, b
# %% wrong-attribute
seen.append('attribute')
t.to(args.where).sum(), seen
# %% wrong-swallowed
seen.append('swallowed')
own_moves.careful(t).device, len(seen)
# %% wrong-swallowed-by-all
for word in ('one', 'two'):
    seen.append(word)
    c = own_moves.stubborn(t)
c.is_cuda, seen
# %% wrong-finally
try:
    d = {'moved': own_moves.up(t)}
finally:
    seen.append('finally')
    print('finally', seen[-2:])
d
# %% wrong-steps
model = nn.Linear(3, 1)
print(f'{own_moves.improve(model, 3):.4f}')
[p.device for p in model.parameters()], seen[-1]
# %% wrong-widget
import ipywidgets
from IPython.display import display
bar = ipywidgets.IntProgress(max=2, description='steps')
display(bar)
for word in ('one', 'two'):
    f = own_moves.up(t)
    bar.value += 1
bar.value, f.is_cuda
# %% history
In[-2].splitlines()[0], Out[4], _
# %% learned-helper from=wrong-helper
# %% learned-swallowed from=wrong-swallowed
# %% learned-steps from=wrong-steps
# %% host-branch
u = t.cuda() if args.use else own_moves.same(t, 'cpu')
u.device, u.sum()
# %% host-branch-learned from=host-branch
# %% host-loop
for step in range(args.steps):
    seen.append(t.cuda())
t.sum(), seen[-1]
# %% host-loop-learned from=host-loop
# %% host-function
def place(x):
    return x.to('cuda') if args.use else x.clone()
place(t).device, place(t).sum()
# %% host-function-learned from=host-function
# %% other-way
args.use = True
# %% learned-wrongly from=host-branch
# %% end
random.random(), np.random.rand(), torch.rand(1), torch.rand(1, device='cuda'), len(seen)
