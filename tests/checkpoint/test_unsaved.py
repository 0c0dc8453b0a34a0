"""What cannot move is refused by name with the path to it; other variables are unaffected, nothing is pretended."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

import pytest

REFUSED = [
    ("generator", "bad = (i for i in range(5)); next(bad)", "GENERATOR", "bad"),
    ("generator inside", "class X: pass\nbad = X(); bad.items = [0, 1, 2, (i for i in range(5))]", "GENERATOR", "bad.items[3]"),
    ("coroutine", "async def c(): pass\nbad = c()", "COROUTINE", "bad"),
    ("held lock", "import threading\nbad = {'lk': threading.Lock()}; bad['lk'].acquire()", "HELD_LOCK", "bad['lk']"),
    ("held rlock", "import threading\nbad = threading.RLock(); bad.acquire()", "HELD_LOCK", "bad"),
    ("thread", "import threading\nbad = [threading.Thread(target=print)]", "THREAD", "bad[0]"),
    ("socket", "import socket\nbad = {'s': {'t': socket.socket()}}", "SOCKET", "bad['s']['t']"),
    ("database", "import sqlite3\nbad = sqlite3.connect(':memory:')", "DATABASE", "bad"),
    ("process", "import subprocess\nbad = subprocess.Popen(['true']); bad.wait()", "PROCESS", "bad"),
    ("closure", "def mk():\n    g = (i for i in [1])\n    return lambda: next(g)\nbad = mk()", "GENERATOR", "bad.<closure g>"),
    ("own reduce raises", "class R:\n    def __reduce__(s): raise ValueError('no')\nbad = [R()]", "NOT_SERIALIZABLE", "bad[0]"),
    (
        "live DataLoader iterator",
        "import torch\nds = torch.utils.data.TensorDataset(torch.arange(10))\nbad = iter(torch.utils.data.DataLoader(ds)); next(bad)",
        "LIVE_ITERATOR",
        "bad",
    ),
    (
        "scaler that knows an optimizer's address",
        "import torch\nbad = {'w': torch.nn.Parameter(torch.ones(1)), 's': torch.amp.GradScaler('cpu')}; bad['o'] = torch.optim.SGD([bad['w']]); bad['s'].scale(bad['w'].sum()).backward(); bad['s'].unscale_(bad['o'])",
        "NOT_SERIALIZABLE",
        "bad['s']",
    ),
    ("memmap of a deleted file", "import numpy as np, os\nnp.zeros(8).tofile('/tmp/ll_gone.bin')\nbad = np.memmap('/tmp/ll_gone.bin', mode='r+'); os.remove('/tmp/ll_gone.bin')", "MAPPED_FILE", "bad"),
    ("tensor over a mapped file", "import numpy as np, torch\nnp.zeros(8).tofile('/tmp/ll_over.bin')\nbad = [torch.from_numpy(np.memmap('/tmp/ll_over.bin', float, 'r+'))]", "MAPPED_FILE", "bad[0]"),
    ("module registered by a cell", "import sys, types\nbad = sys.modules['ll_made_here'] = types.ModuleType('ll_made_here'); bad.v = 1", "MADE_MODULE", "bad"),
    ("private memmap", "import numpy as np\nnp.zeros(8).tofile('/tmp/ll_mm.bin')\nbad = np.memmap('/tmp/ll_mm.bin', mode='c')", "MAPPED_FILE", "bad"),
]  # fmt: skip


@pytest.mark.parametrize(("cells", "reason", "path"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_unsaved_value_is_named_with_its_path_and_others_survive(process, cells, reason, path):
    unsaved = process(f"""
cell({cells!r}); cell("good = {{'a': [1]}}; alias = good['a']")
result = [[u.name, u.reason, u.path] for u in save().unsaved]
""")
    assert unsaved == [["bad", reason, path]]
    result = process("""
restore_all()
from looseleaf.errors import PreconditionFailed
try:
    cell("bad.x")
    why = ""
except PreconditionFailed as error:
    why = error.reason + error.message
result = [check("good['a'] is alias"), tracker.stub_names(), why]
""")
    assert result[:2] == [True, ["bad"]]
    assert result[2].startswith("NOT_SAVED`bad` is not here")
    assert reason in result[2]


def test_unsaved_open_file_is_refused_and_left_untouched(process, tmp_path):
    path = tmp_path / "f.txt"
    result = process(f"""
cell("fh = open({str(path)!r}, 'w+'); fh.write('abc'); fh.flush(); fh.seek(1); good = 1")
report = save()
result = [[[u.name, u.reason] for u in report.unsaved], check("fh.read()")]
""")
    assert result == [[["fh", "OPEN_FILE"]], "bc"]
    process("restore_all()")
    assert path.read_text() == "abc"


def test_unsaved_value_replaces_an_older_saved_one(process):
    process("cell('x = [1]; y = {\"x\": x}; z = 1'); save(); cell('x.append(i for i in [])'); report = save()")
    result = process("restore_all(); result = [tracker.stub_names(), check('z'), sorted(tracker.manifest.roots)]")
    assert result == [["x", "y"], 1, ["z"]]


def test_unsaved_shared_head_takes_all_its_roots_along_each_with_its_path(process):
    result = process("""
cell('''
class S: pass
s = S(); a = {"s": s}; b = [s]; c = 1; s.g = (i for i in [])
''')
result = sorted([u.name, u.path] for u in save().unsaved)
""")
    assert result == [["a", "a['s'].g"], ["b", "b[0].g"], ["s", "s.g"]]


def test_unsaved_reached_from_a_stub_drops_the_stub_too(process):
    process("cell('s = []; a = [s]; b = [s]; del s'); save()")
    result = process("restore('a'); cell('a[0].append(i for i in [])'); result = sorted(u.name for u in save().unsaved)")
    assert result == ["a", "b"]
    assert process("restore_all(); result = sorted(tracker.manifest.roots)") == []


def test_unsaved_is_carried_on_by_holders_without_the_value(process):
    process("cell('g = (i for i in [1]); x = 1'); save()")
    result = process("restore('x'); cell('x = 2'); result = [[u.name, u.since_version] for u in save().unsaved]")
    assert result == [["g", 1]]
    assert process("restore_all(); cell('del g'); save(); result = len(tracker.manifest.unsaved)") == 0


def test_unsaved_held_by_the_kernel_stays_live_there_after_another_version(process):
    result = process("""
cell('g = (i for i in [1, 2]); h = (i for i in [7]); x = [1]')
save()
from looseleaf.checkpoint.tracker import StateTracker
ns2 = {}
t2 = StateTracker(ns2, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
t2.restore(["x"]); ns2["x"].append(2); ns2["h"] = (i for i in [8]); t2.save("x-2")
report = advance()
result = [check("next(g)"), tracker.stub_names()]
""")
    assert result == [1, ["h", "x"]]


def test_unsaved_that_reaches_a_dropped_object_is_reported_stale(process):
    result = process("""
cell('''
import threading
class H: pass
model = [1, 2]
holder = H(); holder.deep = {"m": model}; holder.lock = threading.Lock(); holder.lock.acquire()
fine = H(); fine.lock = holder.lock
''')
save()
from looseleaf.checkpoint.tracker import StateTracker
ns2 = {}
t2 = StateTracker(ns2, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
t2.restore(["model"]); ns2["model"].append(3); t2.save("x-2")
report = advance()
result = [list(report.dropped), report.stale]
""")
    assert result == [["model"], [["holder", "holder.deep['m']"]]]


def test_unsaved_free_lock_comes_back_free_and_shared(process):
    process("cell('import threading\\nlk = threading.Lock(); box = {\"lk\": lk}; ev = threading.Event(); ev.set()'); save()")
    result = process("restore_all(); result = check('lk is box[\"lk\"] and lk.acquire(False) and box[\"lk\"].locked() and ev.is_set()')")
    assert result is True


def test_unsaved_too_deep_structure_never_crashes(process):
    result = process("""
cell('''
deep = []
for _ in range(50_000): deep = [deep]
class N: pass
nodes = [N() for _ in range(5000)]
for a, b in zip(nodes, nodes[1:]): a.next = b; b.prev = a
nodes[-1].next = nodes[0]
''')
result = [u.name for u in save().unsaved]
""")
    assert result == []
    result = process("""
restore_all()
cell('''
depth = 0
while deep: deep = deep[0]; depth += 1
ok = all(a.next is b and b.prev is a for a, b in zip(nodes, nodes[1:])) and nodes[-1].next is nodes[0]
''')
result = check("[depth, ok]")
""")
    assert result == [50_000, True]


def test_unsaved_non_leaf_tensor_keeps_its_value_and_refuses_backward(process):
    process("""
cell('''
import torch
w = torch.ones(3, requires_grad=True); loss = (w * 2).sum(); parts = {"h": w * 3}; view = parts["h"].detach()
''')
report = save(); result = report.notes
assert sorted(report.notes) == ["GRAPH_NOT_CARRIED loss", "GRAPH_NOT_CARRIED parts['h']"], report.notes
""")
    result = process("""
restore_all()
from looseleaf.errors import PreconditionFailed
def why(source):
    try:
        cell(source)
    except PreconditionFailed as error:
        return [error.reason, error.fields["name"]]
    return None
shared = check("view.data_ptr() == parts['h'].data_ptr()")
result = [check("loss.item()"), check("loss.is_leaf"), check("loss.requires_grad"), why("loss.backward()"), why("(parts['h'] * w).sum().backward()"), shared]
""")
    assert result == [6.0, False, True, ["GRAPH_NOT_CARRIED", "loss"], ["GRAPH_NOT_CARRIED", "parts['h']"], True]


def test_unsaved_graph_is_shown_as_it_was_also_after_another_move(process):
    shown = """
result = check("[repr(t).partition('grad_fn=')[2] for t in (loss, parts['h'], view, own, lost)]")
"""
    at_first = process("""
cell('''
import torch
class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 2
    @staticmethod
    def backward(context, g): return g * 2
w = torch.ones(3, requires_grad=True); loss = (w * 2).sum(); parts = {"h": w * 3}
view = parts["h"][:2]; own = Double.apply(w); lost = torch.nn.functional.cross_entropy(w[None], torch.tensor([1]))
''')
""" + shown + "\nsave()")
    assert (at_first[0], at_first[3]) == ("<SumBackward0>)", "<DoubleBackward>)")
    moved = process("restore_all()\n" + shown + "\ncell('more = loss * 1')\nsave()")
    assert moved == at_first
    assert process("restore_all()\n" + shown) == at_first


@pytest.mark.parametrize("loaded", ["'model', 'other'", "'model', 'trainer', 'other'"])
def test_stored_value_of_a_thing_that_became_unsavable_lives_beside_it_and_is_saved_again(process, loaded):
    process("""
cell('''
import torch
model = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
trainer = {"model": model, "steps": []}
other = [1]
''')
save()
""")
    found = process(f"restore({loaded})" + """
cell("model.batches = iter(torch.utils.data.DataLoader([1, 2])); other.append(2)")
first = {u.name for u in save().unsaved}
cell("model.weight.data.fill_(3); trainer['steps'].append(1)")
second = {u.name for u in save().unsaved}
cell("del model.batches")
third = [u.name for u in save().unsaved]
result = [sorted(first), sorted(second), third, check("trainer['model'] is model")]
""")
    assert found == [["model", "trainer"], ["model", "trainer"], [], True]
    after = process("""
restore_all()
result = check("[optimizer.param_groups[0]['params'][0] is model.weight, trainer['model'] is model, trainer['steps'], float(model.weight[0, 0]), other]")
""")
    assert after == [True, True, [1], 3.0, [1, 2]]
