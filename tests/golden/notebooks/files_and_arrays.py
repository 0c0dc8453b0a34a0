# Files written by one cell and read by another, and arrays of every make: structured, views, memory maps, masked.
# gpu-cells: 24
# %% setup
import csv
import gzip
import json
import os
import pickle
import shutil
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import torch
folder = Path(tempfile.mkdtemp())
os.chdir(folder)
torch.manual_seed(0)
w = torch.randn(4, 3, device="cuda")
# %% save-torch
torch.save({"w": w, "step": 3, "shape": w.shape}, "state.pt")
os.path.getsize("state.pt") > 500
# %% load-here
loaded = torch.load("state.pt", map_location="cpu", weights_only=False)
loaded["w"].device, loaded["step"], torch.equal(loaded["w"], w.cpu())
# %% load-gpu gpu
again = torch.load("state.pt", weights_only=True)
again["w"].device, torch.equal(again["w"], w)
# %% json gpu
Path("metrics.json").write_text(json.dumps({"mean": round(w.mean().item(), 4), "epochs": [1, 2]}, indent=1))
with open("log.txt", "w") as f:
    for row in w.tolist():
        print(*(f"{v:.2f}" for v in row), sep=",", file=f)
sorted(p.name for p in folder.iterdir())
# %% json-here
print(Path("metrics.json").read_text())
with open("log.txt") as f:
    rows = list(csv.reader(f))
rows[0], len(rows)
# %% append-here
with open("log.txt", "a") as f:
    f.write("end\n")
# %% append-gpu gpu
open("log.txt").read().splitlines()[-1], Path.cwd() == folder.resolve()
# %% pickle gpu
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, o): return self.x == o.x
with open("points.pkl", "wb") as f:
    pickle.dump([Point(1), {"p": Point(2)}, np.float32(3)], f)
# %% pickle-here
with open("points.pkl", "rb") as f:
    points = pickle.load(f)
points[0] == Point(1), type(points[0]) is Point, points[2]
# %% gzip gpu
with gzip.open("data.gz", "wt") as f:
    f.write("x" * 1000)
np.savez("arrays.npz", a=np.arange(3), w=w.cpu().numpy())
np.save("plain.npy", w.cpu().numpy()[:, ::2])
# %% gzip-here
with np.load("arrays.npz") as z:
    print(z.files, z["w"].shape)
gzip.open("data.gz", "rt").read()[:3], np.load("plain.npy").flags["C_CONTIGUOUS"]
# %% structured
dtype = np.dtype([("id", "i4"), ("pos", "f4", (2,)), ("name", "U5")])
records = np.zeros(3, dtype=dtype)
records["id"] = [1, 2, 3]
records["pos"] = w[:3, :2].cpu()
records["name"] = "abc"
records[0]
# %% structured-gpu gpu
records["pos"][1] = 0
records.sort(order="id")
rec = records.view(np.recarray)
rec.name[2] = "z"
records["name"], rec.id.sum(), np.shares_memory(rec, records)
# %% structured-here
records[1], rec.name[2], np.shares_memory(rec, records), records.dtype.names
# %% views gpu
base = np.arange(24).reshape(4, 6)
col, rev, t, diag = base[:, 1], base[::-1, ::2], base.T, base.diagonal()
base[0, 1] = -1
col[0], t[1, 0], rev.strides, diag.flags.writeable
# %% views-here
base[3, 0] = 99
rev[0, 0], t[0, 3], np.shares_memory(col, base), col.base is base, rev.strides
# %% views-back gpu
col[:] = 7
base[:, 1].tolist(), t.flags["F_CONTIGUOUS"], np.shares_memory(diag, base)
# %% torch-views gpu
row, tr, flat = w[1], w.t(), w.view(-1)
flat[3] = 50
row[0].item(), tr[0, 1].item(), tr.is_contiguous(), row.storage_offset()
# %% torch-views-here
print(row, tr.shape, flat.shape)
# %% torch-views-back gpu
row.zero_()
w[1].sum().item(), flat[3].item(), tr.data_ptr() == w.data_ptr()
# %% memmap
mm = np.memmap("big.dat", dtype="float32", mode="w+", shape=(100, 10))
mm[5] = 3
mm.flush()
mm[5, :3]
# %% memmap-read gpu
ro = np.memmap("big.dat", dtype="float32", mode="r", shape=(100, 10))
torch.tensor(np.array(ro[5]), device="cuda").sum().item()
# %% memmap-later
np.memmap("big.dat", dtype="float32", mode="r", shape=(100, 10))[5].sum()
# %% masked gpu
masked = np.ma.masked_greater(np.arange(6), 3)
masked
# %% masked-here
masked.mean(), masked.mask, masked.filled(-1)
# %% kinds gpu
kinds = {
    "bool": np.array([True, False]), "dates": np.array(["2024-01-01", "NaT"], dtype="M8[D]"), "bytes": np.array([b"a", b"bc"]),
    "big": np.array([1, 2], dtype=">i4"), "half": np.array([0.1], dtype="f2"), "complex": np.array([1 + 2j]), "zero": np.array(5),
    "object": np.array([None, [1], "s"], dtype=object), "empty": np.empty((0, 3)),
}
{k: (v.dtype.str, v.shape) for k, v in kinds.items()}
# %% kinds-here
kinds["dates"], kinds["big"], kinds["complex"].conj(), kinds["zero"] + 1, kinds["object"][1], kinds["half"]
# %% scalars gpu
scalars = [np.float64(1) / 3, np.int8(5), np.datetime64("2024-01-01"), np.bool_(True), np.str_("s"), np.nan, np.inf]
scalars
# %% scalars-here
[type(s).__name__ for s in scalars], scalars[0]
# %% read-only gpu
locked = np.arange(3)
locked.flags.writeable = False
frozen = np.broadcast_to(np.arange(3), (2, 3))
locked.flags.writeable, frozen.strides
# %% read-only-here raises
print(frozen.strides, locked.flags.writeable)
locked[0] = 1
# %% read-only-gpu gpu raises
locked[0] = 1
# %% alias-three
arr = np.arange(4, dtype="float32")
ten = torch.from_numpy(arr)
mv = memoryview(arr)
frombuf = np.frombuffer(arr, dtype="uint8")
ten[0] = 9
arr[0], mv[0], frombuf[:4].tolist()
# %% alias-three-gpu gpu
ten[1] = 8
arr[1], np.shares_memory(arr, ten.numpy()), frombuf.base is not None, ten.cuda().sum()
# %% alias-three-here
arr[2] = 5
ten, np.shares_memory(frombuf, arr)
# %% bytes gpu
blob = bytes(range(256)) * 4096
array_ = bytearray(blob)
view_ = memoryview(array_)
view_[0] = 255
len(blob), array_[0]
# %% bytes-here
array_[1] = 254
view_[1], view_[:3].tobytes(), blob[:3], len(view_)
# %% random
gen = np.random.default_rng(5)
gen.normal(size=2).round(3), gen.integers(0, 10, 3)
# %% random-gpu gpu
gen.normal(size=2).round(3), gen.bit_generator.state["bit_generator"]
# %% random-here
gen.integers(0, 100, 4), gen.spawn(1)[0].integers(0, 100, 2)
# %% torch-generator
g = torch.Generator().manual_seed(3)
torch.rand(2, generator=g)
# %% torch-generator-gpu gpu
torch.rand(2, generator=g), g.initial_seed()
# %% torch-generator-here
torch.rand(2, generator=g)
# %% sqlite gpu
with sqlite3.connect("runs.db") as db:
    db.execute("create table runs (name text, loss real)")
    db.executemany("insert into runs values (?, ?)", [("a", round(w[0, 0].item(), 3)), ("b", 0.5)])
db.close()
# %% sqlite-here
with sqlite3.connect("runs.db") as db2:
    found = db2.execute("select name, loss from runs order by loss").fetchall()
db2.close()
[name for name, _ in found]
# %% cleanup gpu
shutil.rmtree(folder / "inner", ignore_errors=True)
(folder / "inner" / "deep").mkdir(parents=True)
(folder / "inner" / "deep" / "f.txt").touch()
[p.relative_to(folder).as_posix() for p in sorted(folder.rglob("f.txt"))]
# %% stat-here
Path("inner/deep/f.txt").exists(), Path("inner").is_dir()
