"""CPU or GPU by text, by real flags, by what headers recorded."""

from __future__ import annotations

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import SMALL_READ_BYTES_MAX, NameFacts, Payload

TORCH = "import torch\nimport torch.nn as nn"
DEVICE = "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')"
JAX = "import jax\nimport jax.numpy as jnp\nfrom jax import jit, vmap, random"

RUNNER = "class T:\n  def __init__(self): self.d = 'cuda'\n  def run(self, x): return x.to(self.d)"


def gpu(size_bytes: int, payload: int = 1, **facts: object) -> NameFacts:
    return NameFacts(payloads={payload: Payload("cuda:0", size_bytes)}, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cells",
    [
        # only asks
        [TORCH, DEVICE],
        [TORCH, "torch.cuda.is_available()"],
        [TORCH, "print(torch.cuda.get_device_name(0), torch.cuda.device_count())"],
        [TORCH, "s = torch.cuda.get_rng_state()\ntorch.cuda.set_rng_state(s)\ntorch.cuda.initial_seed()"],
        ["!nvidia-smi"],
        # imports and definitions, cues inside
        ["import cudf, jax"],
        [TORCH, "def train(m):\n  m.cuda()\n  return m.to('cuda')"],
        [TORCH, "class T:\n  def run(self): self.m.cuda()"],
        [TORCH, "s = 'x.cuda() on cuda'"],
        # CPU training
        [TORCH, "m = nn.Linear(2, 2)", "m(torch.zeros(2))"],
        [TORCH, "device = 'cpu'", "m = nn.Linear(2, 2).to(device)"],
        [TORCH, DEVICE, "m = nn.Linear(2, 2)", "m.cpu()"],
        # a known flag takes the other branch
        [TORCH, "use_gpu = False", "if use_gpu: x = torch.zeros(1).cuda()"],
        [TORCH, "use_gpu = not torch.cuda.is_available()", "if use_gpu: x = torch.zeros(1).cuda()"],
        [TORCH, "d = 'cuda'", "d = 'cpu'", "x = torch.zeros(1, device=d)"],
        [TORCH, "def f(x, dev='cuda'): return x.to(dev)", "f(torch.zeros(1), dev='cpu')"],
        # copies on the host
        [TORCH, "x = torch.zeros(1).cuda()\ny = x.cpu().numpy()", "y + 1"],
        [TORCH, "x = torch.zeros(1).cuda()\nn = x.shape[0]", "print(n)"],
        # a file's device is told, or nothing in the session is on a GPU
        [TORCH, DEVICE, "s = torch.load('a.pt', map_location='cpu')"],
        [TORCH, DEVICE, "s = torch.load('a.pt', 'cpu')"],
        [TORCH, DEVICE, "s = torch.load('a.pt', map_location=lambda storage, place: storage)"],
        [TORCH, "s = torch.load('a.pt')"],
        [TORCH, "s = torch.load('a.pt', weights_only=True)", "s['w'].mean()"],
        # deletion only
        [TORCH, "x = torch.zeros(1).cuda()", "del x"],
        ["from sklearn.linear_model import Ridge", "m = Ridge()", "m.fit(X, y)"],
        ["import xgboost as xgb", "p = {'device': 'cpu'}", "b = xgb.train(p, d)"],
        ["import xgboost as xgb", "c = xgb.XGBClassifier(tree_method='gpu_hist')"],
        [JAX, "def f(x): return jnp.sin(x)\ng = jit(f)"],
        ["%%cpu\nx.cuda()"],
        ["%%html\n<b>cuda</b>"],
        [""],
    ],
)
def test_label_by_text_is_cpu(ask, cells: list[str]) -> None:
    *earlier, target = cells
    recipe = ask(target, *earlier).recipe
    assert recipe.label == "cpu", recipe.reason


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([TORCH, "x = torch.zeros(1).cuda()"], "torch.zeros(1).cuda()"),
        ([TORCH, DEVICE, "m = nn.Linear(2, 2).to(device)"], "moves data to the GPU"),
        ([TORCH, DEVICE, "x = torch.zeros(1, device=device)"], "device='cuda'"),
        # by residency
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "m(x)"], "`m` is on the GPU"),
        ([TORCH, "m = nn.Linear(2, 2)", "m.cuda()", "opt = torch.optim.SGD(m.parameters())"], "`m` is on the GPU"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()\no = torch.optim.SGD(m.parameters())", "o.step()"], "`o` is on the GPU"),
        # by code that is called, with real flags and arguments
        ([TORCH, DEVICE, "def train(m, d): m.to(d)", "m = nn.Linear(2, 2)", "train(m, device)"], "Calls `train`"),
        ([TORCH, "def train(m): m.cuda()", "def go(): train(nn.Linear(1, 1))", "go()"], "Calls `go`"),
        ([TORCH, RUNNER, "t = T()", "t.run(x)"], "T.run"),
        ([TORCH, "use = torch.cuda.is_available()", "if use:\n  x = torch.zeros(1).cuda()"], "cuda()"),
        ([TORCH, "cfg = {'device': 'cuda'}", "x = torch.zeros(1, device=cfg['device'])"], "cuda"),
        ([TORCH, "torch.cuda.empty_cache()"], "empty_cache"),
        ([TORCH, "x = torch.cuda.FloatTensor(3)"], "FloatTensor"),
        # a file's tensors go where they were saved from, which a session with a GPU may have been
        ([TORCH, DEVICE, "s = torch.load('a.pt')"], "torch.load()"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "s = torch.load('a.pt', weights_only=True)"], "saved from"),
        ([TORCH, "m = nn.Linear(2, 2).cuda()", "s = torch.load('a.pt', map_location='cuda:0')"], "map_location"),
        # unknown device, a parameter nobody can tell
        (["x.to(device)"], "moves data to a device"),
        # parameters from an earlier cell
        (["import xgboost as xgb", "p = {'tree_method': 'gpu_hist'}", "b = xgb.train(p, d)"], "told to use the GPU"),
        (["import xgboost as xgb", "p = dict(device='cuda')\nc = xgb.XGBClassifier(**p)", "c.fit(X, y)"], "c.fit()"),
        # libraries with a mind of their own
        (["import cudf", "df = cudf.read_csv('a')"], "cudf.read_csv()"),
        ([JAX, "x = jnp.zeros(3)"], "jnp.zeros()"),
        ([JAX, "@jit\ndef f(x): return x + 1", "f(2)"], "`f()` runs on the GPU"),
        ([JAX, "def one(x): return jnp.sin(x)", "one(1)"], "Calls `one`"),
        (["from fastai.vision.all import *", "learn = vision_learner(dls, resnet18)"], "vision_learner"),
        (["from transformers import Trainer", "t = Trainer(model=m)", "t.train()"], "`t` is on the GPU"),
        (["import lightning as L", "t = L.Trainer(max_epochs=1)", "t.fit(m)"], "t.fit()"),
        (["from tensorflow import keras", "m = keras.Sequential([])", "m.fit(x, y)"], "`m` is on the GPU"),
        (["!accelerate launch train.py"], "shell line"),
        (["%%gpu\nx = 1"], "%%gpu asks"),
        (["%%time\n%%gpu\nx = 1"], "%%gpu asks"),
    ],
)  # fmt: skip
def test_label_by_text_is_gpu_with_reason(ask, cells: list[str], reason: str) -> None:
    *earlier, target = cells
    recipe = ask(target, *earlier).recipe
    assert recipe.label == "gpu", recipe.reason
    assert reason in recipe.reason
    assert recipe.reason.endswith(".")


def test_label_metadata_overrides_code_and_magic_overrides_metadata(ask) -> None:
    assert ask("x.cuda()", device_override="cpu").recipe.label == "cpu"
    assert ask("x = 1", device_override="gpu").recipe.confidence == 1.0
    assert ask("%%cpu\nx.cuda()", device_override="gpu").recipe.label == "cpu"
    with pytest.raises(InvalidArgument, match="DEVICE_UNKNOWN"):
        ask("x", device_override="tpu")


def test_label_gpu_magic_carries_its_count(ask) -> None:
    assert ask("%%gpu 3\nx = 1").recipe.gpu_count == 3


def test_label_device_payload_in_closure_is_gpu(ask) -> None:
    headers = {"model": gpu(400 << 20), "x": NameFacts()}
    recipe = ask("model(x)", headers=headers).recipe
    assert recipe.label == "gpu"
    assert recipe.reason == "It needs `model` with 400.0 MiB on the GPU."
    assert (recipe.closure_bytes, recipe.device_bytes) == (400 << 20, 400 << 20)


def test_label_recorded_residency_overrules_the_text(ask) -> None:
    cells = [TORCH, "m = nn.Linear(2, 2).cuda()"]
    assert ask("m(x)", *cells, headers={"m": NameFacts(type_name="Linear")}).recipe.label == "cpu"
    assert ask("m(x)", TORCH, "m = load()", headers={"m": gpu(20 << 20)}).recipe.label == "gpu"


def test_label_recorded_flag_overrules_the_text(ask) -> None:
    cells = [TORCH, "use = torch.cuda.is_available()"]
    headers = {"torch": NameFacts(kind="module"), "use": NameFacts(flag=False, has_flag=True)}
    target = "if use:\n  x = torch.zeros(1).cuda()"
    assert ask(target, *cells, headers=headers).recipe.label == "cpu"
    headers["use"] = NameFacts(flag=True, has_flag=True)
    assert ask(target, *cells, headers=headers).recipe.label == "gpu"


def test_label_recorded_device_decides(ask) -> None:
    headers = {"dev": NameFacts("instance", "device", "torch", flag="cpu", has_flag=True), "x": NameFacts()}
    assert ask("x.to(dev)", headers=headers).recipe.label == "cpu"
    headers["dev"] = NameFacts("instance", "device", "torch", flag="cuda:1", has_flag=True)
    assert ask("x.to(dev)", headers=headers).recipe.label == "gpu"


def test_label_device_memory_of_other_libraries_is_known_by_text_only(ask) -> None:
    headers = {"p": NameFacts("value", "list", "builtins", modules=frozenset({"jaxlib._jax"}))}
    assert ask("p[0] + 1", JAX, "p = [jnp.zeros(3)]", headers=headers).recipe.label == "gpu"


@pytest.mark.parametrize(
    "text",
    [
        "loss.item()",
        "print(loss)",
        "print(f'{loss:.2f}')",
        "loss",
        "loss.shape",
        "v = float(loss)",
        "loss.detach().cpu()",
        "loss.detach()",
        "print(loss.detach().clone())",
        "x = loss.detach().cpu().numpy()",
        "loss.detach().cpu().numpy().mean()",
    ],
)
def test_label_small_reads_stay_on_the_cpu(ask, text: str) -> None:
    recipe = ask(text, headers={"loss": gpu(4)}).recipe
    assert (recipe.label, recipe.names) == ("cpu", ("loss",))


@pytest.mark.parametrize(
    "text",
    ["x = loss.detach()", "f(loss.detach())", "g(loss.clone())", "loss.detach().exp().cpu()"],
)
def test_label_copies_that_stay_on_the_device_are_gpu(ask, text: str) -> None:
    assert ask(text, headers={"loss": gpu(4)}).recipe.label == "gpu"


@pytest.mark.parametrize("text", ["loss * 2", "loss.backward()", "loss += 1", "f(loss)", "loss.item() + g(loss)"])
def test_label_small_use_is_gpu(ask, text: str) -> None:
    assert ask(text, headers={"loss": gpu(4)}).recipe.label == "gpu"


def test_label_large_read_is_gpu(ask) -> None:
    assert ask("print(big)", headers={"big": gpu(SMALL_READ_BYTES_MAX + 1)}).recipe.label == "gpu"


def test_label_shared_payload_counts_once(ask) -> None:
    headers = {"model": gpu(100, payload=7), "opt": gpu(100, payload=7), "y": gpu(1, payload=8)}
    assert ask("opt.step(model, y)", headers=headers).recipe.device_bytes == 101


def test_label_gpu_cell_needs_the_names_it_only_deletes(ask) -> None:
    cells = ["old = 1"]
    assert ask("del old", *cells).recipe.names == ()
    assert ask("%%gpu\ndel old", *cells).recipe.names == ("old",)


def test_label_recursive_code_ends(ask) -> None:
    assert ask("f(3)", "def f(n): return g(n)", "def g(n): return f(n - 1)").recipe.label == "cpu"


@pytest.mark.parametrize(
    "text",
    [
        "%time y = m(x)", "%timeit m(x)", "%timeit -n 3 -r 2 x @ x", "t = %timeit -o x + 1", "%prun m(x)",
        "%%timeit y = x + 1\npass", "if True:\n    %time x.sum()", "print(x)\n%time x.add_(1)", "!echo {m(x)}",
        "out = !echo {x + 1}", "%%bash -s {m(x)}\necho", "%%time\nx + 1", "%%capture out\nm(x)",
    ],
)  # fmt: skip
def test_label_use_of_small_device_values_inside_a_magic_is_gpu(ask, text: str) -> None:
    headers = {"x": gpu(4096), "m": gpu(4096)}
    assert ask(text, TORCH, "x, m = make()", headers=headers).recipe.label == "gpu"


@pytest.mark.parametrize(
    "text", ["%time x.item()", "%timeit -n 3 float(x)", "!echo {x}", "!echo $x", "%%bash -s {x}\necho", "%time x.shape"]
)
def test_label_reading_small_device_values_inside_a_magic_is_cpu(ask, text: str) -> None:
    recipe = ask(text, TORCH, "x = make()", headers={"x": gpu(4096)}).recipe
    assert recipe.label == "cpu", recipe.reason
    assert "x" in recipe.names


@pytest.mark.parametrize(
    "text",
    [
        "%time y = torch.ones(1, device='cuda')", "%%timeit y = torch.ones(1).cuda()\npass",
        "for i in range(2):\n    %time torch.ones(1).cuda()", "%%prun\ntorch.ones(1).cuda()",
    ],
)  # fmt: skip
def test_label_making_device_values_inside_a_magic_is_gpu(ask, text: str) -> None:
    assert ask(text, TORCH).recipe.label == "gpu"


def test_label_later_cell_knows_what_a_magic_moved(ask) -> None:
    assert ask("m(x)", TORCH, "%time m = nn.Linear(2, 2).cuda()").recipe.label == "gpu"
    called = ["def f():\n    %time torch.ones(1).cuda()"]
    assert ask("f()", TORCH, *called).recipe.label == "gpu"


_MAKER = """
class Model:
    def __init__(self, device="cuda"): self.w = torch.ones(2, device=device)
    @classmethod
    def make(cls, device="cuda"): return cls(device)
    @staticmethod
    def ones(n, device): return torch.ones(n, device=device)
    @classmethod
    def name(cls): return cls.__name__
    def norm(self): return self.w.norm()
class Child(Model): pass
"""


@pytest.mark.parametrize(
    "text", ["m = Model.make()", "Child.make()", "Model.ones(3, 'cuda')", "Model.ones(n=2, device='cuda')"]
)
def test_label_methods_of_a_class_that_use_the_device_are_gpu(ask, text: str) -> None:
    assert ask(text, "import torch", _MAKER).recipe.label == "gpu"


@pytest.mark.parametrize(
    "text", ["Model.make(device='cpu')", "Model.name()", "Child.ones(3, 'cpu')", "Model.make", "Model.norm"]
)
def test_label_methods_of_a_class_that_do_not_are_cpu(ask, text: str) -> None:
    assert ask(text, "import torch", _MAKER).recipe.label == "cpu"
