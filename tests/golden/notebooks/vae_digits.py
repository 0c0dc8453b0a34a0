# A variational autoencoder on digits: reparametrised samples, KL warm-up, latent walks, gradients through distributions.
# gpu-cells: 15
# %% imports
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from torch.distributions import Normal, kl_divergence, Categorical, Independent
from torch.utils.data import DataLoader, TensorDataset
%matplotlib inline
# %% data
torch.manual_seed(2)
images = torch.tensor(load_digits().data[:800], dtype=torch.float32) / 16
loader = DataLoader(TensorDataset(images), batch_size=100, shuffle=True)
images.shape, images.max()
# %% model
class VAE(nn.Module):
    def __init__(self, d=64, h=48, z=3):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ELU())
        self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ELU(), nn.Linear(h, d))
    def encode(self, x):
        h = self.enc(x)
        return self.mu(h), self.logvar(h)
    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std
    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.dec(self.reparameterize(mu, logvar)), mu, logvar
vae = VAE().cuda()
opt = torch.optim.Adam(vae.parameters(), lr=4e-3)
beta, history = 0.0, {'rec': [], 'kl': []}
# %% loss
def elbo(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction='none').sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec, kl
# %% epochs
for _ in range(2):
    for (x,) in loader:
        x = x.cuda()
        logits, mu, logvar = vae(x)
        rec, kl = elbo(logits, x, mu, logvar)
        opt.zero_grad()
        (rec + beta * kl).backward()
        opt.step()
    history['rec'].append(rec.item()); history['kl'].append(kl.item())
    beta = min(1.0, beta + 0.25)
    print(f'rec {rec.item():.3f} kl {kl.item():.3f} beta {beta}')
# %% epochs-2 from=epochs
# %% history
{k: [round(v, 2) for v in vs] for k, vs in history.items()}, beta
# %% reconstruct
vae.eval()
with torch.no_grad():
    back, mu, logvar = vae(images[:6].cuda())
recon = back.sigmoid().cpu()
print(F.mse_loss(recon, images[:6]).item().__round__(4))
# %% plot
fig, axes = plt.subplots(2, 6, figsize=(6, 2))
for i in range(6):
    axes[0, i].imshow(images[i].view(8, 8), cmap='gray')
    axes[1, i].imshow(recon[i].view(8, 8), cmap='gray')
    axes[0, i].axis('off'); axes[1, i].axis('off')
plt.show()
# %% sample
with torch.no_grad():
    z = torch.randn(4, 3, device='cuda')
    made = vae.dec(z).sigmoid()
made.mean(1)
# %% walk
a, b = mu[0], mu[1]
steps = torch.linspace(0, 1, 5, device='cuda').unsqueeze(1)
with torch.no_grad():
    walk = vae.dec(a + steps * (b - a)).sigmoid()
(walk[1:] - walk[:-1]).norm(dim=1).cpu()
# %% walk-plot
plt.figure(figsize=(4, 1.2))
plt.imshow(np.hstack([w.reshape(8, 8) for w in walk.cpu().numpy()]), cmap='gray')
plt.axis('off')
plt.show()
# %% distributions
posterior = Independent(Normal(mu, (0.5 * logvar).exp()), 1)
prior = Independent(Normal(torch.zeros_like(mu), torch.ones_like(mu)), 1)
kl_divergence(posterior, prior), posterior
# %% posterior
draws = posterior.sample((100,))
draws.mean(0).sub(mu).abs().max() < 1, posterior.log_prob(mu).shape, posterior.batch_shape, draws.device
# %% rsample
opt.zero_grad()
m, lv = vae.encode(images[:10].cuda())
q = Normal(m, (lv / 2).exp())
z = q.rsample()
loss = -Normal(0., 1.).log_prob(z.cpu()).sum() + (z ** 2).sum()
loss.backward()
round(loss.item(), 3), round(vae.mu.weight.grad.norm().item(), 3)
# %% gumbel
logits = torch.randn(5, 4, device='cuda', requires_grad=True)
hard = F.gumbel_softmax(logits, tau=0.5, hard=True)
(hard * torch.arange(4., device='cuda')).sum().backward()
hard.sum(1), logits.grad.abs().sum() > 0
# %% categorical
counts = torch.bincount(Categorical(logits=logits.detach()[0]).sample((50,)), minlength=4)
counts, counts.sum()
# %% encode-all
with torch.no_grad():
    codes = torch.cat([vae.encode(x.cuda())[0] for x in images.split(200)])
codes.shape, codes.mean(0).cpu().numpy().round(3)
# %% numpy
table = codes.cpu().numpy()
u, s, vt = np.linalg.svd(table - table.mean(0), full_matrices=False)
(s / s.sum()).round(4)
# %% nearest
dist = torch.cdist(codes[:1], codes)
dist.topk(4, largest=False).indices.tolist()
# %% conv
conv = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(),
                     nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=1), nn.Flatten()).cuda()
copt = torch.optim.SGD(conv.parameters(), lr=0.5)
for _ in range(5):
    l = F.mse_loss(conv(images[:64].cuda()), images[:64].cuda())
    copt.zero_grad(); l.backward(); copt.step()
print(f'{l.item():.5f}')
# %% conv-more
for _ in range(5):
    l = F.mse_loss(conv(images[:64].cuda()), images[:64].cuda())
    copt.zero_grad(); l.backward(); copt.step()
print(f'{l.item():.5f}')
