# A small GAN: two optimizers, fixed noise, spectral norm, label smoothing, alternating steps over many cells.
# gpu-cells: 15
# %% setup
import torch, numpy as np, math
from torch import nn, optim
import torch.nn.functional as F
manualSeed = 999
torch.manual_seed(manualSeed)
torch.cuda.manual_seed(manualSeed)
nz, ndf, ngf, batch_size = 4, 16, 16, 64
device = torch.device("cuda:0" if (torch.cuda.is_available()) else "cpu")
# %% real
def sample_real(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.02 * torch.randn(n, 2)
sample_real(3)
# %% nets
def weights_init(m):
    classname = m.__class__.__name__
    if classname.find('Linear') != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.2)
        nn.init.constant_(m.bias.data, 0)

class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(nn.Linear(nz, ngf), nn.BatchNorm1d(ngf), nn.ReLU(True), nn.Linear(ngf, 2))
    def forward(self, input):
        return self.main(input)

class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.utils.spectral_norm(nn.Linear(2, ndf)), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.1), nn.Linear(ndf, 1))
    def forward(self, input):
        return self.main(input).view(-1)
# %% netG
netG = Generator().to(device)
netG.apply(weights_init)
print(netG)
# %% netD
netD = Discriminator().to(device)
netD.main[3].apply(weights_init)
print(netD)
# %% optim
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(8, nz, device=device)
real_label, fake_label = 0.9, 0.
optimizerD = optim.Adam(netD.parameters(), lr=5e-3, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=5e-3, betas=(0.5, 0.999))
G_losses, D_losses, img_list = [], [], []
iters = 0
fixed_noise.norm()
# %% loop
for i in range(8):
    netD.zero_grad()
    real = sample_real(batch_size).to(device)
    label = torch.full((batch_size,), real_label, dtype=torch.float, device=device)
    errD_real = criterion(netD(real), label)
    errD_real.backward()
    noise = torch.randn(batch_size, nz, device=device)
    fake = netG(noise)
    label.fill_(fake_label)
    errD_fake = criterion(netD(fake.detach()), label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()

    netG.zero_grad()
    label.fill_(real_label)
    errG = criterion(netD(fake), label)
    errG.backward()
    optimizerG.step()
    if i % 4 == 0:
        print('[%d] Loss_D: %.4f Loss_G: %.4f' % (iters, errD.item(), errG.item()))
    G_losses.append(errG.item())
    D_losses.append(errD.item())
    iters += 1
# %% show
with torch.no_grad():
    fake = netG(fixed_noise).detach().cpu()
img_list.append(fake)
fake[:3]
# %% loop-2 from=loop
# %% losses
print(len(G_losses), iters)
np.round(G_losses, 4), np.round(D_losses[-3:], 4)
# %% alias
D_alias, groups = netD, optimizerD.param_groups
groups[0]['lr'] *= 0.5
D_alias.main[2].p = 0.0
netD.main[2]
# %% loop-3 from=loop
# %% show-2 from=show
# %% moved
(img_list[1] - img_list[0]).abs().mean() > 0, len(img_list), D_alias is netD
# %% r1
real = sample_real(16).to(device).requires_grad_()
out = netD(real)
(g,) = torch.autograd.grad(out.sum(), real, create_graph=True)
r1 = g.pow(2).sum(1).mean()
optimizerD.zero_grad()
(F.softplus(-out).mean() + 5 * r1).backward()
optimizerD.step()
print(f"{r1.item():.5f}")
# %% sn
w = netD.main[0]
sigma = torch.linalg.matrix_norm(w.weight.detach(), 2)
[n for n, _ in w.named_parameters()], [n for n, _ in w.named_buffers()], round(sigma.item(), 2)
# %% interpolate
netG.eval()
z = torch.stack([torch.lerp(fixed_noise[0], fixed_noise[1], t) for t in torch.linspace(0, 1, 5).tolist()])
with torch.no_grad():
    path = netG(z)
path.cpu().numpy().round(3)
# %% swap-roles
netG.train()
for p in netD.parameters():
    p.requires_grad_(False)
before = [p.detach().clone() for p in netD.parameters()]
for _ in range(3):
    optimizerG.zero_grad()
    F.softplus(-netD(netG(torch.randn(32, nz, device=device)))).mean().backward()
    optimizerG.step()
all(torch.equal(a, b) for a, b in zip(before, netD.parameters())), any(p.requires_grad for p in netD.parameters())
# %% fid
def stats(x):
    x = x - x.mean(0)
    return x.T @ x / (len(x) - 1)
with torch.no_grad():
    made = netG(torch.randn(200, nz, device=device))
torch.linalg.matrix_norm(stats(made) - stats(sample_real(200).to(device))).cpu().round(decimals=4)
# %% draw
torch.rand(2, device=device), torch.rand(2), np.random.RandomState(0).rand(1)
