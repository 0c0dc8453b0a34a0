# Random numbers of four kinds drawn in turn on the host and the GPU, states kept, moved, forked and brought back.
# gpu-cells: 21
# %% imports
import hashlib, os, random
import numpy as np
import torch
import torch.nn as nn
# %% seed
def seed_everything(seed=42):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
seed_everything()
# %% draw-host
random.random(), np.random.rand(), torch.rand(2)
# %% draw-both
random.random(), np.random.rand(), torch.rand(2), torch.rand(2, device='cuda')
# %% draw-gpu
torch.randn(2, device='cuda'), torch.randint(100, (3,), device='cuda'), torch.randperm(5, device='cuda')
# %% draw-host-2
random.randint(0, 1000), np.random.randn(2), torch.randperm(5), os.environ['PYTHONHASHSEED'], torch.backends.cudnn.deterministic
# %% keep
states = {'py': random.getstate(), 'np': np.random.get_state(), 'torch': torch.get_rng_state(), 'cuda': torch.cuda.get_rng_state()}
first = torch.rand(3, device='cuda'), torch.rand(3), np.random.rand(), random.random()
first
# %% back
random.setstate(states['py'])
np.random.set_state(states['np'])
torch.set_rng_state(states['torch'])
torch.cuda.set_rng_state(states['cuda'])
again = torch.rand(3, device='cuda'), torch.rand(3), np.random.rand(), random.random()
[bool((a == b).all()) if isinstance(a, torch.Tensor) else a == b for a, b in zip(first, again)]
# %% back-host
torch.set_rng_state(states['torch'])
torch.equal(torch.rand(3), first[1].clone()), states['cuda'].device, states['cuda'].dtype
# %% generators
host_gen = torch.Generator().manual_seed(1)
gpu_gen = torch.Generator(device='cuda').manual_seed(1)
np_gen = np.random.default_rng(1)
py_gen = random.Random(1)
torch.rand(1, generator=host_gen), torch.rand(1, device='cuda', generator=gpu_gen), np_gen.random(), py_gen.random()
# %% generators-host
torch.rand(1, generator=host_gen), np_gen.integers(100, size=3), py_gen.choice('abc')
# %% generators-gpu
torch.rand(1, generator=host_gen), torch.rand(1, device='cuda', generator=gpu_gen), np_gen.normal(), py_gen.sample(range(10), 3)
# %% aliases
keep = [gpu_gen, {'host': host_gen}]
keep[0] is gpu_gen, keep[1]['host'] is host_gen, gpu_gen.device, gpu_gen.initial_seed()
# %% clones
copied = gpu_gen.clone_state() if hasattr(gpu_gen, 'clone_state') else torch.Generator('cuda')
copied.set_state(gpu_gen.get_state())
torch.equal(torch.rand(4, device='cuda', generator=copied), torch.rand(4, device='cuda', generator=gpu_gen))
# %% through-alias
torch.rand(2, device='cuda', generator=keep[0]), torch.rand(2, generator=keep[1]['host'])
# %% fork
before = torch.rand(1), torch.rand(1, device='cuda')
with torch.random.fork_rng():
    torch.manual_seed(0)
    inside = torch.rand(1), torch.rand(1, device='cuda')
before, inside, torch.rand(1), torch.rand(1, device='cuda')
# %% dropout
torch.manual_seed(3)
drop = nn.Dropout(0.5)
ones = torch.ones(8, device='cuda')
drop(ones), drop(ones)
# %% dropout-2
drop(ones), drop(torch.ones(8)), torch.nn.functional.dropout(ones, 0.3)
# %% init
torch.manual_seed(10)
a = nn.Linear(4, 4).cuda()
torch.manual_seed(10)
b = nn.Linear(4, 4, device='cuda')
torch.equal(a.weight, b.weight), a.weight[0], b.weight[0]
# %% init-3
torch.manual_seed(10)
c = nn.Linear(4, 4)
torch.equal(c.weight, a.weight.cpu()), torch.initial_seed(), torch.cuda.initial_seed()
# %% seed-only-gpu
torch.cuda.manual_seed(5)
one = torch.rand(2, device='cuda'), torch.rand(2)
torch.cuda.manual_seed(5)
two = torch.rand(2, device='cuda'), torch.rand(2)
torch.equal(one[0], two[0]), torch.equal(one[1], two[1])
# %% host-only-seed
torch.cuda.manual_seed(77)
random.seed('text'); np.random.seed(9)
random.random(), np.random.rand()
# %% after-host-seed
torch.rand(2, device='cuda'), random.random(), np.random.rand()
# %% distributions
torch.manual_seed(8)
gen = torch.empty(3, device='cuda')
gen.normal_(), gen.uniform_(1, 2).clone(), gen.exponential_().clone(), torch.bernoulli(torch.full((4,), 0.5, device='cuda')), torch.multinomial(torch.ones(5, device='cuda'), 3)
# %% numpy-torch
np.random.seed(4)
arr = np.random.rand(4)
t = torch.from_numpy(arr).cuda()
np.random.shuffle(arr)
t.cpu().numpy().round(3), arr.round(3)
# %% hash
hashlib.md5(b'x').hexdigest()[:8], hash('stable') == hash('stable'), sorted({'b', 'a', 'c'})
# %% all-states
everything = torch.cuda.get_rng_state_all()
len(everything), torch.cuda.get_rng_state().equal(everything[0])
# %% step
torch.manual_seed(123)
losses = []
for _ in range(3):
    x = torch.randn(5, 4, device='cuda')
    losses.append(drop(a(x)).pow(2).mean().item())
np.round(losses, 5)
# %% end
seed_everything(7)
random.random(), np.random.rand(), torch.rand(1), torch.rand(1, device='cuda')
