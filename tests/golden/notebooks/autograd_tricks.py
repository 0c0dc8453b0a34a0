# Autograd beyond backward(): own functions, hooks, gradients of gradients, torch.func, checkpointing, parametrizations.
# gpu-cells: 25
# %% imports
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function, grad
from torch.func import functional_call, grad as fgrad, jacrev, vmap, stack_module_state
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
# %% own-function
class ClampSTE(Function):
    """Rounds forward, passes the gradient straight."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        return x.round().clamp(low, high)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        return grad_output * ((x >= low) & (x <= high)), None, None

quantize = ClampSTE.apply
# %% use-function
w = torch.linspace(-3, 3, 7, device='cuda', requires_grad=True)
out = quantize(w, -2, 2)
out.pow(2).sum().backward()
w.grad
# %% read-grad
print(w.grad, w.is_leaf, w.grad.device)
# %% use-again
w.grad = None
quantize(w * 2, -1, 1).sum().backward()
w.grad
# %% hooks
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
seen = []
def remember(module, args, output):
    seen.append((type(module).__name__, tuple(output.shape), round(output.mean().item(), 4)))
handles = [m.register_forward_hook(remember) for m in net]
net.cuda()
len(handles)
# %% forward
x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).cuda()
y = net(x)
seen
# %% backward-hook
norms = {}
def keep(name):
    def hook(grad):
        norms[name] = round(grad.norm().item(), 4)
        return grad * 0.5
    return hook
for name, p in net.named_parameters():
    p.register_hook(keep(name))
# %% with-hooks
seen.clear()
net.zero_grad()
net(x).square().mean().backward()
print(norms)
print([round(p.grad.norm().item(), 4) for p in net.parameters()])
len(seen)
# %% unhook
for h in handles:
    h.remove()
seen.clear()
net(x)
seen, [len(m._forward_hooks) for m in net]
# %% double
z = torch.tensor([0.5, 1.0, 2.0], device='cuda', requires_grad=True)
f = (z ** 3).sum()
(first,) = grad(f, z, create_graph=True)
(second,) = grad(first.sum(), z)
first, second
# %% penalty
critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1, device=real.device)
    mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
    (g,) = grad(critic(mix).sum(), mix, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()
torch.manual_seed(4)
real, fake = torch.randn(6, 3, device='cuda'), torch.randn(6, 3, device='cuda')
gp = gradient_penalty(critic, real, fake)
gp.backward()
gp.item(), critic[0].weight.grad.abs().sum().item()
# %% per-sample
params = {k: v.detach() for k, v in critic.named_parameters()}
def sample_loss(params, x, t):
    return F.mse_loss(functional_call(critic, params, (x.unsqueeze(0),)).squeeze(0), t)
per_sample = vmap(fgrad(sample_loss), in_dims=(None, 0, 0))(params, real, torch.zeros(6, 1, device='cuda'))
{k: tuple(v.shape) for k, v in per_sample.items()}, round(per_sample['0.weight'].norm().item(), 4)
# %% jac
def field(v):
    return torch.stack([v[0] * v[1], v[1].sin(), v.sum()])
jacrev(field)(torch.tensor([1.0, 2.0, 3.0], device='cuda'))
# %% ensemble
models = [nn.Linear(3, 2).cuda() for _ in range(4)]
stacked, buffers = stack_module_state(models)
skeleton = nn.Linear(3, 2, device='meta')
outs = vmap(lambda p, b: functional_call(skeleton, (p, b), (real,)))(stacked, buffers)
outs.shape, torch.allclose(outs[2], models[2](real), atol=1e-6)
# %% recompute
class Deep(nn.Module):
    def __init__(self, n, use_checkpoint=True):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.SiLU()) for _ in range(n))
        self.use_checkpoint = use_checkpoint
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.use_checkpoint and self.training else layer(x)
        return x
deep = Deep(3).cuda()
torch.manual_seed(9)
inp = torch.randn(4, 8, device='cuda', requires_grad=True)
deep(inp).sum().backward()
inp.grad.norm().item()
# %% no-recompute
deep.use_checkpoint = False
deep.zero_grad()
torch.manual_seed(9)
inp2 = torch.randn(4, 8, device='cuda', requires_grad=True)
deep(inp2).sum().backward()
torch.equal(inp2, inp), torch.allclose(inp2.grad, inp.grad)
# %% param
class Symmetric(nn.Module):
    def forward(self, X):
        return X.triu() + X.triu(1).transpose(-1, -2)
layer = nn.Linear(3, 3)
parametrize.register_parametrization(layer, 'weight', Symmetric())
layer.cuda()
torch.equal(layer.weight, layer.weight.T), list(dict(layer.named_parameters()))
# %% param-train
sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    sgd.zero_grad()
    F.mse_loss(layer(real), fake).backward()
    sgd.step()
torch.equal(layer.weight, layer.weight.T), round(layer.weight.sum().item(), 5)
# %% param-class
type(layer).__name__, parametrize.is_parametrized(layer, 'weight')
# %% weight-norm
wn = parametrizations.weight_norm(nn.Linear(4, 2)).cuda()
sn = parametrizations.spectral_norm(nn.Linear(4, 4)).cuda()
loss = wn(sn(x)).pow(2).mean()
loss.backward()
[n for n, _ in wn.named_parameters()], round(loss.item(), 5), sn.parametrizations.weight[0]._u.device
# %% wn-again
opt = torch.optim.Adam([*wn.parameters(), *sn.parameters()], lr=0.05)
for _ in range(4):
    opt.zero_grad()
    loss = wn(sn(x)).pow(2).mean()
    loss.backward()
    opt.step()
print(f'{loss.item():.6f}')
# %% unparam
parametrize.remove_parametrizations(layer, 'weight')
type(layer).__name__, list(dict(layer.named_parameters())), layer.weight.is_leaf
# %% detach
a = torch.ones(3, device='cuda', requires_grad=True)
b = (a * 2)
b.retain_grad()
c = b.detach()
(b * c).sum().backward(retain_graph=True)
a.grad, b.grad, c.requires_grad
# %% accumulated
(a * c).sum().backward()
a.grad
# %% anomaly
import warnings
with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
    warnings.simplefilter('ignore')
    try:
        bad = torch.zeros(1, device='cuda', requires_grad=True)
        (bad.sqrt() * 0).backward()
        print(bad.grad)
    except RuntimeError as error:
        print('caught', str(error).split('.')[0])
# %% mode
with torch.no_grad():
    t = a * 2
with torch.inference_mode():
    u = a * 2
t.requires_grad, u.is_inference(), t
# %% inference-use
v = u + 1
v, u.is_inference()
