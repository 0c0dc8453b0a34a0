"""Partial restore, then save: what was not loaded keeps its entries, and sees what changed in what it shares (§3.9)."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

MODELS = """
import torch
class Net(torch.nn.Module):
    def __init__(self, emb):
        super().__init__()
        self.emb = emb
        self.head = torch.nn.Linear(8, 8)
emb = torch.nn.Embedding(20, 8)
model_a = Net(emb); model_b = Net(emb)
opt = torch.optim.SGD(model_a.parameters(), lr=.5)
"""


def test_merge_head_mutated_through_one_side_is_seen_by_unrestored_roots(process):
    process(f"cell({MODELS!r}); save()")
    process("""
restore("model_a", "torch")
assert set(tracker.stub_names()) >= {"model_b", "opt", "emb"}
cell("with torch.no_grad(): model_a.emb.weight.fill_(3.)")
save()
""")
    result = process("""
restore("model_b", "opt", "emb", "torch")
result = [check(e) for e in (
    "float(model_b.emb.weight[0, 0])", "emb is model_b.emb", "opt.param_groups[0]['params'][0] is emb.weight",
)]
""")
    assert result == [3.0, True, True]


def test_merge_head_mutated_and_then_dropped_is_still_saved(process):
    process(f"cell({MODELS!r}); save()")
    process("""
restore("model_a", "torch")
cell("with torch.no_grad(): model_a.emb.weight.fill_(4.)\\nmodel_a = None")
import gc; gc.collect()
save()
""")
    result = process("restore('model_b', 'emb'); result = check('float(model_b.emb.weight.sum()), emb is model_b.emb')")
    assert result == [4.0 * 160, True]


def test_merge_list_shared_between_roots_is_mutated_through_one(process):
    process("cell('shared = [1]; a = {\"s\": shared}; b = {\"s\": shared}; del shared'); save()")
    process("restore('a'); cell('a[\"s\"].append(2)'); save()")
    process("restore('a'); cell('a[\"s\"].append(3); del a'); save()")
    result = process("restore_all(); result = check('(b, \"a\" in globals())')")
    assert result == [{"s": [1, 2, 3]}, False]


def test_merge_small_and_large_views_of_unrestored_bases_share(process):
    process("""
cell('''
import numpy as np, torch
big = np.zeros(100_000); part = big[10:20]
small = np.zeros(100); bit = small[10:20]
t = torch.zeros(100_000); tv = t[5:9]
u = torch.zeros(100); uv = u[5:9]
''')
save()
""")
    process("""
restore('part', 'bit', 'tv', 'uv')
cell("part[0] = 1; bit[0] = 2; tv[0] = 3; uv[0] = 4")
save()
cell("part[1] = 5; bit[1] = 6; tv[1] = 7; uv[1] = 8; del part, bit, tv, uv")
save()
""")
    result = process("""
restore('big', 'small')
restore('t', 'u')
result = check("[big[10], big[11], small[10], small[11], float(t[5]), float(t[6]), float(u[5]), float(u[6])]")
""")
    assert result == [1, 5, 2, 6, 3, 7, 4, 8]


def test_merge_second_restore_joins_what_already_lives(process):
    process("""
cell('''
import numpy as np, torch
base = np.arange(50_000.); v1 = base[:100]; v2 = base[50:150]
w = torch.zeros(50_000); w1 = w[:100]; w2 = w[50:]
l = []; d1 = {'l': l}; d2 = {'l': l}
''')
save()
""")
    result = process("""
restore('v1', 'w1', 'd1'); restore('v2', 'w2', 'd2')
cell("v1[60] = -1; w1[60] = -1; d1['l'].append(1)")
result = check("[v2[10], float(w2[10]), d2['l'], d1['l'] is d2['l'], w1.untyped_storage().data_ptr() == w2.untyped_storage().data_ptr()]")
""")
    assert result == [-1, -1, [1], True, True]


def test_merge_in_the_saving_process_joins_too(process):
    # The holder that saved is told that another changed one of two sharers; it keeps the other one live.
    result = process("""
cell('''
import numpy as np
base = np.arange(50_000.); view = base[:100]; box = {'v': view}; other = [1]
''')
save()
from looseleaf.checkpoint.tracker import StateTracker
ns2 = {}
t2 = StateTracker(ns2, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
t2.restore(["other", "box"])
ns2["other"].append(2); ns2["box"]["new"] = 1
t2.save("x-2")
report = advance()
live = [n for n in ("base", "view", "box", "other") if n not in tracker.stub_names()]
restore("box", "other")
cell("base[3] = 9")
result = [sorted(report.dropped), live, check("box['v'] is view"), check("float(box['v'][3])"), check("(box['new'], other)")]
""")
    assert result == [["box", "other"], ["base", "view"], True, 9.0, [1, [1, 2]]]


def test_merge_stub_put_into_a_live_container_becomes_a_reference(process):
    process("cell('x = [1, 2]; box = {}'); save()")
    process("restore('box'); cell('box[\"x\"] = x; y = x'); save()")
    result = process("restore_all(); result = check('box[\"x\"] is x and y is x and x == [1, 2]')")
    assert result is True


def test_merge_deleted_and_rebound_stubs_count(process):
    process("cell('x = [1]; y = [2]; z = [3]'); save()")
    process("restore('x'); cell('del y; z = 5'); save()")
    result = process("restore_all(); result = [check('(x, z)'), 'y' in driver.namespace, list(tracker.manifest.tombstones)]")
    assert result == [[[1], 5], False, ["y"]]


def test_merge_cycle_between_roots_survives_partial_restores(process):
    process("""
cell('''
class Node: pass
a = Node(); b = Node(); a.peer = b; b.peer = a; a.bag = {b: 1}; lst = [a]; a.lst = lst; t = (a, lst); a.t = t
''')
save()
""")
    process("restore('b'); cell('b.x = 1; b.peer.y = 2'); save()")
    result = process("""
restore_all()
result = check("a.peer is b and b.peer is a and a.bag == {b: 1} and a.lst is lst and lst[0] is a and a.t is t and t[0] is a and t[1] is lst and (b.x, a.y) == (1, 2)")
""")
    assert result is True


def test_merge_name_that_was_deleted_stays_deleted_while_others_are_loaded(process):
    process("cell('x = [1]; y = [2]; z = [3]'); save()")
    result = process("""
restore('x'); cell('del x, z'); restore('y')
result = [sorted(n for n in driver.namespace if len(n) == 1)]
save()
result += [check('y'), list(tracker.manifest.tombstones)]
""")
    assert result == [["y"], [2], ["x", "z"]]


OBJECTS = """
import numpy as np
base = np.array([0, 1, None, "end"], dtype=object)
part = base[1:]
base[0] = [part]
base[1] = base
turned = np.asfortranarray(np.array([[[1], {}], ["x", None]], dtype=object))
turned[0, 0].append(turned.T)
turned.flags.writeable = False
"""


def test_merge_array_of_objects_that_hold_views_of_it_keeps_them(process):
    # Numpy's own way of unpickling moves the elements of an array that views were taken of already.
    process(f"cell({OBJECTS!r}); save()")
    result = process("""
restore_all()
cell("part[1] = 'new'")
result = [check(e) for e in (
    "base[2:].tolist()", "part[0] is base", "base[0][0] is part", "turned[0, 0][0]", "turned[1, 0]",
    "turned.flags.f_contiguous", "turned[0, 0][1][1, 0] is turned[0, 1]", "turned.flags.writeable",
)]
""")
    assert result == [["new", "end"], True, True, 1, "x", True, True, False]
