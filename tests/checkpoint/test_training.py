"""A notebook that trains, its cells spread over processes, ends bit for bit as in one process."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

import pytest

CELLS = [
    """
import copy, random
import numpy as np, torch
from torch import nn
torch.manual_seed(0); np.random.seed(0); random.seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(.3), nn.Linear(64, 32))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.emb.weight
    def forward(self, x):
        return self.head(self.body(self.emb(x)))
history = []
def log(step, loss): history.append((step, loss.item()))
""",
    """
net = Net(); ema = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=False)
sched = torch.optim.lr_scheduler.StepLR(opt, 2, .5)
data = torch.randint(0, 50, (256,))
""",
    """
def step(n):
    for i in range(n):
        batch = data[torch.randperm(256)[:64]]
        loss = nn.functional.cross_entropy(net(batch), batch)
        opt.zero_grad(); loss.backward(); opt.step(); sched.step()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), net.parameters()): a.lerp_(b, .1)
        log(len(history), loss)
step(3)
""",
    "step(2); noise = np.random.rand(3) + random.random()",
    "net.head.weight.data.mul_(.9); step(2)",
    "final = [p.detach().clone() for p in [*net.parameters(), *ema.parameters(), *net.buffers()]]; draw = torch.rand(2)",
]
ANSWER = """
import hashlib
h = hashlib.sha256()
cell("__v = [t.detach().numpy().tobytes() for t in (*net.state_dict().values(), *ema.state_dict().values(), *final, draw)]; "
     "__v += [s.numpy().tobytes() if hasattr(s, 'numpy') else repr(s).encode() for g in opt.state_dict()['state'].values() for s in g.values()]")
for b in check("__v"): h.update(b)
result = [h.hexdigest(), check("history"), check("noise.tolist()"), check("net.head.weight is net.emb.weight"),
          check("opt.param_groups[0]['params'][0] is net.emb.weight"), check("sched.optimizer is opt"), check("sched.get_last_lr()")]
"""


def test_training_over_three_processes_equals_one_process(process, nursery, tmp_path):
    expected = nursery.run(tmp_path / "alone", "".join(f"cell({cell!r})\n" for cell in CELLS) + ANSWER)
    process(f"cell({CELLS[0]!r}); save(); cell({CELLS[1]!r}); save()")
    process(f"restore('step', 'net', 'opt', 'data', 'sched', 'ema', 'log', 'nn', 'torch'); cell({CELLS[2]!r}); save()")
    process(f"restore('step', 'np', 'random'); cell({CELLS[3]!r}); save()")
    process(f"restore('step', 'net'); cell({CELLS[4]!r}); save()")
    actual = process(f"restore_all(); cell({CELLS[5]!r}); save()\n" + ANSWER)
    assert actual == expected


@pytest.mark.parametrize("subset", ["opt", "sched"])
def test_training_objects_restored_alone_and_joined_later_are_tied(process, subset):
    process(f"cell({CELLS[0]!r}); cell({CELLS[1]!r}); cell({CELLS[2]!r}); save()")
    result = process(f"""
restore({subset!r}); save(); restore_all()
cell("net.train(); step(1)")
result = check("[net.head.weight is net.emb.weight, opt.param_groups[0]['params'][0] is net.emb.weight, sched.optimizer is opt, len(history)]")
""")
    assert result == [True, True, True, 4]


def test_training_on_a_virtual_gpu_moves_with_its_device(process):
    process("""
from looseleaf import devices
devices.install("worker", "emulated", 1)
devices.attach([0])
cell('''
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(300, 300).cuda(); opt = torch.optim.Adam(net.parameters()); x = torch.ones(4, 300, device="cuda"); y = x[1:]; host = torch.ones(3)
net(x).sum().backward(); opt.step()
''')
save()
header = tracker.manifest.closure(["net"])
assert {tracker.manifest.payloads[p].device for p in header.payloads} == {"cuda:0"}, tracker.manifest.payloads
""")
    result = process("""
from looseleaf import devices
devices.install("worker", "emulated", 1)
devices.attach([0])
restore_all()
cell("y[0] = 5.; out = net(x).sum(); opt.step()")
result = check("[str(net.weight.device), str(x.device), str(host.device), float(x[1, 0]), str(opt.state[net.weight]['exp_avg'].device), out.device.type, x.is_cuda]")
""")
    assert result == ["cuda:0", "cuda:0", "cpu", 5.0, "cuda:0", "cuda", True]


@pytest.mark.parametrize("role", ["worker", "kernel"])
def test_hooks_on_tensors_that_move_to_a_virtual_gpu_are_saved(process, role):
    process(f"""
from looseleaf import devices
devices.install({role!r}, "emulated", 1)
cell("import torch; seen = []; w = torch.nn.Parameter(torch.ones(3)); w.register_hook(lambda g: seen.append(g.device.type))")
assert not save().unsaved
""")
    for _ in range(2):
        process("""
from looseleaf import devices
devices.install("worker", "emulated", 1)
devices.attach([0])
restore_all()
cell("w.data = w.data.cuda(); w.register_hook(lambda g: seen.append(g.device.index)); w.sum().backward()")
assert not save().unsaved
""")
    assert process("restore('seen'); result = check('seen')") == ["cuda", 0, "cuda", 0, 0]


def test_generator_of_a_device_counts_as_memory_there_and_is_read_in_the_kernel(process):
    process("""
from looseleaf import devices
devices.install("worker", "emulated", 1)
devices.attach([0])
cell("import torch; g = torch.Generator('cuda').manual_seed(5); h = torch.Generator(); box = {'g': g, 'n': 1}; d = torch.cuda.default_generators[0]")
save()
""")
    result = process("""
from looseleaf import devices
devices.install("kernel", "emulated", 1)
restore_all()
units = tracker.manifest.units
closures = [tracker.manifest.closure([name]).units for name in ("g", "box", "h")]
result = [sum(units[u].header.device_bytes.get("cuda:0", 0) for u in found) for found in closures]
result.append(check("[str(g.device), g.initial_seed(), box['g'] is g, str(h.device)]"))
from looseleaf.errors import PreconditionFailed
try: cell("torch.Generator('cuda')")
except PreconditionFailed as error: result.append(error.reason)
""")
    assert result == [16, 16, 0, ["cuda:0", 5, True, "cpu"], "CUDA_IN_CPU_CELL"]


def test_virtual_gpu_streams_views_and_small_memory_join_over_partial_restores(process):
    process("""
from looseleaf import devices
devices.install("worker", "emulated", 2)
devices.attach([0, 1])
cell('''
import torch
torch.manual_seed(3); torch.cuda.set_device(1)
big = torch.zeros(100_000, device="cuda:0"); part = big[10:]; small = torch.zeros(8, device="cuda:1"); bit = small[2:]
g = torch.Generator("cuda"); g.manual_seed(5); torch.rand(3, device="cuda", generator=g); torch.rand(4, device="cuda:1"); half = torch.ones(3, device="cuda:0").half()
''')
save()
cell("want = [torch.rand(2, device='cuda', generator=g).tolist(), torch.rand(2, device='cuda:1').tolist(), torch.rand(2).tolist()]")
import json, pathlib
pathlib.Path(io.root, "want.json").write_text(json.dumps(check("want")))
""")
    result = process("""
from looseleaf import devices
devices.install("worker", "emulated", 2)
devices.attach([0, 1])
import json, pathlib
restore("part", "bit", "g", "torch")
cell("part[0] = 1; bit[0] = 2")
got = [check("torch.rand(2, device='cuda', generator=g).tolist()"), check("torch.rand(2, device='cuda:1').tolist()"), check("torch.rand(2).tolist()")]
save()
cell("part[1] = 3; bit[1] = 4; del part, bit")
restore("big", "small", "half")
save()
result = [got == json.loads(pathlib.Path(io.root, "want.json").read_text()), check("[float(big[10]), float(big[11]), float(small[2]), float(small[3]), str(small.device), str(half.device), torch.cuda.current_device()]")]
""")
    assert result == [True, [1.0, 3.0, 2.0, 4.0, "cuda:1", "cuda:0", 1]]
