# Figures with inline matplotlib: results of the GPU drawn, styles set in one cell and seen in the next, figures kept.
# gpu-cells: 23
# %% setup
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import torch
torch.manual_seed(0)
plt.rcParams["figure.figsize"] = (4, 2.5)
plt.rcParams["figure.dpi"] = 60
# %% line
x = torch.linspace(0, 6.28, 80, device="cuda")
y = torch.sin(x)
plt.plot(x.cpu(), y.cpu(), label="sin")
plt.legend();
# %% same-size-here
plt.plot(np.arange(5))
plt.title("size of the first cell");
# %% rc-from-gpu gpu
plt.rc("lines", linewidth=4)
plt.rc("axes", facecolor="lightyellow", grid=True)
plt.rcParams["figure.figsize"] = (3, 2)
plt.rcParams["image.cmap"] = "magma"
# %% rc-seen
plt.plot([3, 1, 2])
print(plt.rcParams["lines.linewidth"], plt.rcParams["axes.facecolor"], plt.rcParams["figure.figsize"], plt.rcParams["image.cmap"])
# %% rc-seen-gpu gpu
plt.plot([3, 1, 2], "o-")
plt.show()
print("after the figure")
# %% image
def blobs(n, k=4):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, n, device="cuda"), torch.linspace(-1, 1, n, device="cuda"), indexing="ij")
    c = torch.rand(k, 2, device="cuda") * 2 - 1
    return torch.exp(-((xx[None] - c[:, 0, None, None]) ** 2 + (yy[None] - c[:, 1, None, None]) ** 2) * 12).sum(0)

picture = blobs(48)
plt.imshow(picture.cpu())
plt.colorbar()
plt.axis("off");
# %% grid
fig, axes = plt.subplots(2, 3, figsize=(5, 3))
for ax, sigma in zip(axes.flat, [0, 1, 2, 3, 4, 5]):
    noisy = picture + sigma * 0.1 * torch.randn_like(picture)
    ax.imshow(noisy.cpu().numpy(), cmap="gray")
    ax.set_title(f"σ={sigma}", fontsize=7)
    ax.set_xticks([]); ax.set_yticks([])
fig.tight_layout()
# %% figure-object
fig
# %% change-kept-figure gpu
axes[0, 0].set_title("changed on the GPU", fontsize=6)
axes[1, 2].clear()
axes[1, 2].plot(y[:20].cpu())
fig
# %% change-here
fig.suptitle("and here", fontsize=8)
fig.set_size_inches(4, 2)
display(fig)
print(len(fig.axes), axes.shape, fig.axes[0] is axes[0, 0])
# %% style gpu
plt.style.use("ggplot")
# %% style-seen
plt.bar(["a", "b"], [1, 2]);
# %% style-context gpu
with plt.style.context("dark_background"):
    plt.hist(torch.randn(300, device="cuda").cpu().numpy(), bins=15)
    plt.show()
plt.rcParams["axes.facecolor"]
# %% defaults
plt.rcdefaults()
plt.rcParams["figure.dpi"] = 50
print(plt.rcParams["lines.linewidth"], plt.rcParams["image.cmap"])
# %% defaults-gpu gpu
fig2, ax2 = plt.subplots(figsize=(2, 2))
ax2.scatter(torch.rand(20), torch.rand(20), c=torch.rand(20), s=30)
ax2.set(xlabel="x", ylabel="y")
print(plt.rcParams["figure.dpi"], plt.rcParams["lines.linewidth"])
# %% two-figures gpu
for power in (1, 2):
    plt.figure(figsize=(2, 1.5))
    plt.plot((x**power).cpu())
    plt.title(f"power {power}")
    plt.show()
    print("shown", power)
# %% close gpu
f = plt.figure(figsize=(2, 2))
plt.plot([1, 2])
plt.close(f)
plt.get_fignums()
# %% kept-axes gpu
history = []
live_fig, live_ax = plt.subplots(figsize=(3, 2))
(line,) = live_ax.plot([], [])
plt.close(live_fig)
def draw():
    line.set_data(range(len(history)), history)
    live_ax.relim(); live_ax.autoscale_view()
    return live_fig
# %% kept-axes-1
w = torch.zeros(1, device="cuda", requires_grad=True)
for _ in range(5):
    loss = (w - 3).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.2 * w.grad
        w.grad.zero_()
    history.append(loss.item())
draw()
# %% kept-axes-2 from=kept-axes-1
# %% kept-axes-here
print([round(h, 3) for h in history], line.axes is live_ax, len(line.get_xdata()))
draw()
# %% heatmap
attention = torch.softmax(torch.randn(6, 6, device="cuda"), -1)
fig3, ax3 = plt.subplots(figsize=(3, 3))
im = ax3.imshow(attention.cpu(), vmin=0, vmax=1)
for i in range(6):
    for j in range(0, 6, 2):
        ax3.text(j, i, f"{attention[i, j].item():.1f}", ha="center", va="center", color="w", fontsize=6)
fig3.colorbar(im, ax=ax3, shrink=0.7)
plt.show()
# %% colormap gpu
from matplotlib.colors import ListedColormap, Normalize
own = ListedColormap(["#000000", "#ff0000", "#ffff00"], name="own")
norm = Normalize(0, 2)
plt.figure(figsize=(2, 2))
plt.pcolormesh(torch.arange(9).reshape(3, 3) % 3, cmap=own, norm=norm)
plt.show()
# %% colormap-here
own(norm(1.0)), own.name, own.N
# %% savefig gpu
import os
import tempfile
path = os.path.join(tempfile.mkdtemp(), "figure.png")
fig3.savefig(path, dpi=40)
os.path.getsize(path) > 500
# %% savefig-read
plt.imread(path).shape
# %% svg gpu
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("png", "jpeg")
plt.figure(figsize=(1.5, 1.5)); plt.plot([1, 2]); plt.show()
# %% svg-seen
plt.figure(figsize=(1.5, 1.5)); plt.plot([1, 2]); plt.show()
# %% svg-seen-gpu gpu
plt.figure(figsize=(1.5, 1.5)); plt.plot([1, 2]); plt.show()
set_matplotlib_formats("png")
# %% pandas-plot
import pandas as pd
frame = pd.DataFrame({"loss": history, "square": [h * h for h in history]})
frame.plot(figsize=(3, 2), title="frame");
# %% pandas-plot-gpu gpu
frame.plot(kind="bar", figsize=(3, 2), legend=False)
frame.hist(figsize=(3, 1.5));
# %% animation-like gpu
from IPython.display import clear_output
for step in range(3):
    clear_output(wait=True)
    plt.figure(figsize=(1.5, 1))
    plt.plot(range(step + 2))
    plt.title(f"step {step}")
    plt.show()
# %% ion-ioff gpu
plt.ioff()
plt.figure(figsize=(1, 1))
print(plt.isinteractive(), plt.get_backend())
# %% ion-ioff-here
print(plt.isinteractive())
plt.plot([1])
plt.ion();
# %% error-in-figure gpu
try:
    plt.plot([1, 2], [1, 2, 3])
except ValueError as e:
    print(e)
plt.close("all")
# %% last
plt.close("all")
plt.get_fignums(), plt.isinteractive()
