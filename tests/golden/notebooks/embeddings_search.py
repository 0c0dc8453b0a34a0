# Vectors of made-up documents: similarity search, nearest neighbours, PCA and k-means, written as people write them.
# gpu-cells: 13
# %% imports
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

rng = np.random.default_rng(0)
torch.manual_seed(0)
# %% documents
topics = ["sports", "cooking", "space", "music"]
centers = rng.normal(size=(4, 48)).astype("float32") * 2
labels = rng.integers(0, 4, size=400)
raw = centers[labels] + rng.normal(size=(400, 48)).astype("float32")
docs = pd.DataFrame({"id": np.arange(400), "topic": pd.Categorical.from_codes(labels, topics)})
docs.topic.value_counts().sort_index()
# %% to-gpu
emb = F.normalize(torch.from_numpy(raw).cuda(), dim=1)
emb.shape, emb.norm(dim=1).sum()
# %% search
def search(query, k=5):
    scores = emb @ F.normalize(query, dim=-1)
    top = scores.topk(k)
    return pd.DataFrame({
        "id": top.indices.cpu().numpy(),
        "score": top.values.cpu().numpy().round(4),
        "topic": docs.topic.iloc[top.indices.cpu()].values,
    })

search(emb[3])
# %% search-noise
query = emb[10] + 0.1 * torch.randn(48, device="cuda")
hits = search(query, k=8)
hits
# %% grouped
hits.groupby("topic", observed=True).score.agg(["mean", "count"])
# %% all-pairs
sim = emb @ emb.T
sim.fill_diagonal_(-1)
nearest = sim.argmax(1)
agree = (torch.tensor(labels, device="cuda")[nearest] == torch.tensor(labels, device="cuda")).float().mean()
print(f"1-NN agreement: {agree:.3f}")
# %% confusion
pd.crosstab(docs.topic, docs.topic.values[nearest.cpu().numpy()], rownames=["true"], colnames=["nearest"])
# %% knn-compare
nn_model = NearestNeighbors(n_neighbors=3, metric="cosine").fit(emb.cpu().numpy())
dist, idx = nn_model.kneighbors(emb[:4].cpu().numpy())
gpu_idx = (emb[:4] @ emb.T).topk(3).indices
print(idx)
np.array_equal(idx, gpu_idx.cpu().numpy())
# %% pca
mean = emb.mean(0)
U, S, Vh = torch.linalg.svd(emb - mean, full_matrices=False)
explained = S**2 / (S**2).sum()
proj = (emb - mean) @ Vh[:2].T
print(explained[:4].cpu())
proj.shape, proj.std(0)
# %% pca-sklearn
pca = PCA(2).fit(emb.cpu().numpy())
np.allclose(np.abs(pca.transform(emb.cpu().numpy())), proj.abs().cpu().numpy(), atol=1e-4)
# %% frame
docs[["x", "y"]] = proj.cpu().numpy()
docs.head()
# %% frame-later
docs.groupby("topic", observed=True)[["x", "y"]].mean().round(3)
# %% kmeans
def kmeans(x, k, steps=20, seed=0):
    gen = torch.Generator(device=x.device)
    gen.manual_seed(seed)
    cent = x[torch.randperm(len(x), generator=gen, device=x.device)[:k]].clone()
    history = []
    for _ in range(steps):
        d = torch.cdist(x, cent)
        assign = d.argmin(1)
        history.append(d.gather(1, assign[:, None]).pow(2).sum().item())
        onehot = F.one_hot(assign, k).to(x.dtype)
        new = (onehot.T @ x) / onehot.sum(0)[:, None].clamp(min=1)
        if torch.allclose(new, cent):
            break
        cent = new
    return cent, assign, history

cent, assign, history = kmeans(emb, 4)
print(len(history), [round(h, 3) for h in history])
assign.bincount()
# %% purity
table = pd.crosstab(assign.cpu().numpy(), labels)
table.max(1).sum() / len(labels)
# %% index-class
class VectorIndex:
    """Keeps its vectors on the device; grows by adding."""

    def __init__(self, dim, device="cuda"):
        self.vectors = torch.empty(0, dim, device=device)
        self.ids = []

    def add(self, vectors, ids):
        self.vectors = torch.cat([self.vectors, F.normalize(vectors.to(self.vectors.device), dim=1)])
        self.ids.extend(ids)
        return self

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, doc_id):
        return self.vectors[self.ids.index(doc_id)]

    def query(self, v, k=3):
        scores, at = (self.vectors @ v).topk(min(k, len(self)))
        return [(self.ids[i], round(s, 4)) for i, s in zip(at.tolist(), scores.tolist())]

    def __repr__(self):
        return f"<VectorIndex of {len(self)} vectors of {self.vectors.shape[1]} on {self.vectors.device.type}>"

index = VectorIndex(48)
index.add(torch.from_numpy(raw[:100]), [f"doc{i}" for i in range(100)])
# %% index-grow
index.add(torch.from_numpy(raw[100:200]), [f"doc{i}" for i in range(100, 200)])
print(len(index), index)
index.query(index["doc150"])
# %% index-other-name
same = index
same.add(torch.ones(1, 48), ["ones"])
index.query(torch.ones(48, device="cuda") / 48**0.5, k=2), index is same
# %% quantized
scale = emb.abs().amax() / 127
q = (emb / scale).round().to(torch.int8)
approx = (q[:5].float() @ q.float().T) * scale**2
exact = emb[:5] @ emb.T
print(q.element_size() * q.nelement(), "bytes instead of", emb.element_size() * emb.nelement())
(approx - exact).abs().max() < 0.01
# %% alias
# from_numpy shares memory with its array, also when a device cell came between
host = torch.from_numpy(raw)
raw[0, :3] = 0
print(host[0, :4], host.data_ptr() == raw.ctypes.data)
# %% alias-gpu gpu
host[1, :3] = 7
print(raw[1, :4], np.shares_memory(host.numpy(), raw))
# %% alias-after
raw[1, :4], host[:2, :2], np.shares_memory(host.numpy(), raw)
