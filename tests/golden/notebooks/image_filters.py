# Images as tensors: filters, gradients, resizing, histograms, convolution kernels and feature maps looked at.
# gpu-cells: 19
# %% setup
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
torch.manual_seed(0)
plt.rcParams.update({"figure.figsize": (3, 2), "figure.dpi": 50, "image.cmap": "gray"})
# %% image
yy, xx = np.mgrid[0:32, 0:32]
picture = ((np.sin(xx / 3) + np.cos(yy / 4)) * 60 + 128).clip(0, 255).astype("uint8")
picture[8:16, 8:16] = 250
Image.fromarray(picture).resize((64, 64))
# %% to-device
x = torch.from_numpy(picture).to("cuda").float().div(255)[None, None]
x.shape, x.mean()
# %% kernels
kernels = {
    "identity": [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
    "edge": [[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]],
    "sobel": [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
    "blur": (np.ones((3, 3)) / 9).tolist(),
}
bank = torch.tensor(list(kernels.values()), device="cuda")[:, None]
responses = F.conv2d(x, bank, padding=1)
for name, r in zip(kernels, responses[0]):
    print(f"{name:9s} {r.min().item():7.3f} {r.max().item():7.3f}")
# %% show-responses
fig, axes = plt.subplots(1, 4, figsize=(5, 1.5))
for ax, name, r in zip(axes, kernels, responses[0]):
    ax.imshow(r.cpu()); ax.set_title(name, fontsize=6); ax.axis("off")
# %% gradient
gx = F.conv2d(x, bank[2:3], padding=1)
gy = F.conv2d(x, bank[2:3].transpose(2, 3), padding=1)
magnitude = (gx**2 + gy**2).sqrt()
angle = torch.atan2(gy, gx)
plt.imshow(magnitude[0, 0].cpu())
plt.title(f"max {magnitude.max().item():.2f}");
# %% histogram
hist = torch.histc(x, bins=8, min=0, max=1)
plt.bar(range(8), hist.cpu())
hist.int()
# %% resize
sizes = [(16, 16), (48, 40)]
resized = [F.interpolate(x, size=s, mode="bilinear", align_corners=False) for s in sizes]
[tuple(r.shape) for r in resized], [round(r.mean().item(), 4) for r in resized]
# %% roundtrip
back = (resized[0][0, 0].clamp(0, 1) * 255).byte().cpu().numpy()
Image.fromarray(back)
# %% affine
theta = torch.tensor([[[0.8, -0.6, 0.0], [0.6, 0.8, 0.0]]], device="cuda")
grid = F.affine_grid(theta, x.shape, align_corners=False)
rotated = F.grid_sample(x, grid, align_corners=False)
plt.imshow(rotated[0, 0].cpu()); plt.colorbar();
# %% normalise
class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, t):
        return (t - self.mean) / self.std

norm = Normalize([x.mean().item()], [x.std().item()]).cuda()
n = norm(x)
print(norm.mean.device.type, f"{n.mean().item():.4f} {n.std().item():.4f}")
# %% network
net = nn.Sequential(norm, nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU()).cuda().eval()
features = {}
def keep(name):
    def hook(module, inputs, output):
        features[name] = output.detach()
    return hook
handles = [net[i].register_forward_hook(keep(f"layer{i}")) for i in (1, 4)]
with torch.no_grad():
    out = net(x)
{k: tuple(v.shape) for k, v in features.items()}
# %% hooks-later
with torch.no_grad():
    net(rotated)
print({k: round(v.abs().mean().item(), 4) for k, v in features.items()})
handles[0].remove()
features.clear()
# %% hooks-removed
net(x)
list(features)
# %% show-kernels
weights = net[1].weight.detach().cpu()
fig, axes = plt.subplots(1, 6, figsize=(5, 1))
for ax, k in zip(axes, weights):
    ax.imshow(k[0]); ax.axis("off")
fig
# %% saliency
probe = x.clone().requires_grad_()
net(probe)[0, 3].max().backward()
saliency = probe.grad.abs()[0, 0]
saliency.shape, (saliency > 0).sum()
# %% saliency-plot
plt.imshow(saliency.cpu(), cmap="hot")
plt.axis("off");
# %% denoise
noisy = (x + 0.2 * torch.randn_like(x)).clamp(0, 1)
blur = F.avg_pool2d(F.pad(noisy, (1, 1, 1, 1), mode="reflect"), 3, 1)
psnr = lambda a, b: (-10 * (a - b).pow(2).mean().log10()).item()
print(f"{psnr(noisy, x):.2f} dB -> {psnr(blur, x):.2f} dB")
# %% batch
batch = torch.stack([x[0], noisy[0], rotated[0], blur[0]])
grid_image = torch.cat(list(batch[:, 0]), dim=1)
plt.figure(figsize=(5, 1.5)); plt.imshow(grid_image.cpu()); plt.axis("off"); plt.show()
batch.mean((1, 2, 3))
# %% fft
spectrum = torch.fft.fftshift(torch.fft.fft2(x[0, 0])).abs().log1p()
plt.imshow(spectrum.cpu(), cmap="viridis")
restored = torch.fft.ifft2(torch.fft.fft2(x[0, 0])).real
torch.allclose(restored, x[0, 0], atol=1e-5)
# %% threshold
mask = x > x.mean()
labels = torch.where(mask, 2, 0) + (magnitude > 0.5)
labels.unique(return_counts=True)
# %% numpy-and-back
edges = magnitude[0, 0].cpu().numpy()
edges[:2] = 0
ys, xs = np.unravel_index(edges.argmax(), edges.shape)
(int(ys), int(xs)), magnitude[0, 0, 0].sum() > 0
