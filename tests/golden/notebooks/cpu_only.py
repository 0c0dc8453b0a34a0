# Work without a device: pandas, scikit-learn, torch on the CPU, plots, warnings, errors from deep inside libraries.
# gpu-cells: 0
# %% imports
import warnings
import numpy as np
import pandas as pd
import torch
from torch import nn
import matplotlib.pyplot as plt
from sklearn.linear_model import LogisticRegression
rng = np.random.default_rng(3)
torch.manual_seed(3)
# %% frame
frame = pd.DataFrame({"kind": list("aabbc"), "size": rng.normal(size=5).round(3)})
frame
# %% grouped
frame.groupby("kind")["size"].agg(["mean", "count"])
# %% styled
frame["kind"] = frame["kind"].astype("category")
frame.describe(include="all")
# %% missing-column raises
frame["weight"].sum()
# %% last-result
frame.iloc[0]
_["size"] * 2
# %% fit
points = rng.normal(size=(60, 3))
goal = (points.sum(1) > 0).astype(int)
fitted = LogisticRegression().fit(points, goal)
fitted
# %% score
fitted.score(points, goal), fitted.coef_.round(3)
# %% bad-shape raises
fitted.predict(points[:, :2])
# %% model
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
inputs, targets = torch.tensor(points, dtype=torch.float32), torch.tensor(goal)
model
# %% train
for epoch in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print(epoch, f"{loss.item():.4f}")
loss
# %% train-again from=train
# %% wrong-width raises
model(inputs[:, :2])
# %% wrong-index raises
inputs[100]
# %% wrong-device raises
inputs.to("meta") + inputs
# %% warned
inputs.storage().size()
# %% warned-again
def mean_of_nothing():
    return torch.empty(0).std()

mean_of_nothing()
# %% own-warning
warnings.warn("look here", UserWarning, stacklevel=1)
np.array([1.0]) / 0
# %% hooks
seen = []
handle = model[0].register_forward_hook(lambda module, given, found: seen.append(tuple(found.shape)))
_ = model(inputs)
handle.remove()
seen
# %% saved
torch.save(model.state_dict(), "model.pt")
again = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
again.load_state_dict(torch.load("model.pt"))
# %% saved-wrong raises
again.load_state_dict({"0.weight": torch.zeros(1)})
# %% same
torch.equal(model(inputs), again(inputs)), torch.get_default_dtype(), torch.is_grad_enabled()
# %% plot
figure, axis = plt.subplots(figsize=(3, 2))
axis.scatter(points[:, 0], points[:, 1], c=goal)
axis.set_title("points")
plt.show()
# %% time
%time total = sum(range(1000))
total
# %% captured
%%capture text
print("hidden")
# %% capture-shown
text.stdout
# %% asks
torch.cuda.is_initialized(), torch.device("cpu"), inputs.device, inputs.is_cuda
# %% threads
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    found = list(pool.map(lambda n: float(torch.full((2,), float(n)).sum()), range(4)))
found
# %% loader
from torch.utils.data import DataLoader, TensorDataset
sum(len(batch) for batch, _ in DataLoader(TensorDataset(inputs, targets), batch_size=16, num_workers=2))
# %% help
len?
# %% system-exit raises
raise SystemExit(2)
# %% names
sorted(name for name in globals() if not name.startswith("_") and name not in ("In", "Out"))
