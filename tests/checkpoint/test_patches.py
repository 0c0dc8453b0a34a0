"""What session code sets in modules and classes of libraries moves with the session; what libraries set by themselves stays."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

import importlib
import os
import sys
import types

import pytest

from looseleaf.checkpoint.module_code import Baseline, own_names
from looseleaf.checkpoint.patches import FILE_STATE, PatchFinder, apply_patches

# name -> (cells, what must be true of the restored process)
MOVED = {
    "new and changed values": ("import json, math, string, textwrap\njson.flag = 5; json.table = {'a': [1]}; math.tau2 = 6.28; string.digits = '01'; textwrap.width = None; held = json.table", "json.flag == 5 and json.table is held and math.tau2 == 6.28 and string.digits == '01' and textwrap.width is None"),
    "module that the cell imports": ("import sched\nsched.note = 'n'", "sched.note == 'n'"),
    "functions of other kinds": ("import functools, math, textwrap, time\nclass T:\n    def __call__(s): return 5\ndef wrap(f):\n    @functools.wraps(f)\n    def inner(*a): calls.append(1); return f(*a)\n    return inner\ncalls = []; textwrap.old = textwrap.fill; textwrap.fill = functools.partial(textwrap.fill, width=5); time.now = T(); math.floor = wrap(math.floor)", "textwrap.fill('abcd efgh') == 'abcd\\nefgh' and textwrap.old('abcd efgh') == 'abcd efgh' and time.now() == 5 and (math.floor(1.5), calls) == (1, [1])"),
    "members of classes": ("import fractions, json\nimport pandas as pd\nfrom decimal import Decimal\njson.JSONEncoder.default = lambda s, o: 'X'; fractions.Fraction.half = property(lambda s: s / 2)\n@pd.api.extensions.register_dataframe_accessor('mine')\nclass Mine:\n    def __init__(self, o): self.o = o\n    def total(self): return int(self.o.to_numpy().sum())\ndf = pd.DataFrame({'a': [1, 2]})", "json.dumps(object()) == '\"X\"' and fractions.Fraction(2).half == 1 and df.mine.total() == 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_patch_is_in_force_in_another_process(process, name):
    cells, check = MOVED[name]
    assert process(f"cell({cells!r}); result = [u.name for u in save().unsaved]") == []
    result = process(f"report = restore_all(); result = [list(report.problems), save().nothing_changed, bool(check({check!r}))]")
    assert result == [[], True, True]


def test_patch_that_calls_what_it_replaces_is_right_after_a_second_move(process):
    process("cell('import math\\nold = math.floor\\nmath.floor = lambda x: 100 + old(x)'); save()")
    process("restore_all(); cell('old2 = old; math.ceil = lambda x: 200 + old(x)'); save()")
    result = process("restore_all(); result = check('[math.floor(1.5), math.ceil(1.5), old(2.5), old2 is old]')")
    assert result == [101, 201, 2, True]


def test_patch_finds_what_it_reads_whatever_variables_are_loaded(process):
    process("""
cell('import math; calls = []; limit = [9]; big = [1]; x = 1')
cell('def note(v): calls.append(v); return len(calls) + deep()')
cell('def deep(): return limit[0]')
cell('math.sqrt = note'); save()
""")
    result = process("restore('x'); result = [sorted(tracker.stub_names()), check('__import__(\"math\").sqrt(4)'), check('calls')]")
    assert result == [["big", "note"], 10, [4]]
    process("restore('x'); cell('limit[0] = 20; x = 2'); save()")
    result = process("""
restore('x'); before = check('__import__("math").sqrt(4)')
cell('del limit'); save()
result = [before, tracker.manifest.names_of_process(with_devices=True)]
""")
    assert result == [21, ["calls", "deep"]]


def test_variable_that_only_a_patch_reads_costs_no_other_if_it_cannot_be_loaded(process):
    process("""
cell('import math; x = 1')
cell('class R:\\n    def __reduce__(s): return int, ("no number",)')
cell('bad = R(); math.sqrt = lambda v: bad'); save()
""")
    result = process("report = tracker.restore(['x']); result = [len(report.failed), report.problems, check('x')]")
    assert result[0] == 0 and result[2] == 1
    assert [problem.partition(",")[0] for problem in result[1]] == ["`bad`"]


def test_patch_that_is_none_any_more_is_taken_back(monkeypatch):
    class Held:
        def said(self):
            return "own"

    module = types.ModuleType("far_away")
    module.Held, module.width, module.call = Held, 3, len
    monkeypatch.setitem(sys.modules, "far_away", module)
    places = {("far_away", name): value for name, value in (("width", 5), ("new", 6), ("call", print), ("added", print))}
    classes = {("far_away", "Held.said"): lambda self: "patched", ("far_away", "Held.more"): lambda self: 1}
    for patches in ({**places, **classes}, {**places, ("far_away", "width"): 7}, places):
        assert apply_patches(patches) == []
    assert (module.width, module.new, module.call, module.added) == (5, 6, print, print)
    assert Held().said() == "own" and not hasattr(Held, "more")
    assert apply_patches({}) == []
    assert (module.width, module.call, hasattr(module, "new"), hasattr(module, "added")) == (3, len, False, False)


def test_patches_are_none_where_libraries_only_did_their_work(process):
    result = process("""
cell('''
import json, logging, math, os, random, re, sys, time, warnings
import numpy as np, pandas as pd, torch, torch.nn as nn
net = nn.Linear(3, 1); opt = torch.optim.AdamW(net.parameters()); net(torch.ones(1, 3)).sum().backward(); opt.step()
x = np.random.rand(5); y = random.random(); df = pd.DataFrame({"a": x}).groupby("a").sum(); s = json.dumps([1]); m = re.match("a", "a") is None
''')
save()
result = sorted(map(str, tracker.record["patches"]))
""")
    assert result == []


def made(monkeypatch, source):
    module = types.ModuleType("ll_made")

    class Loader:
        def get_code(self, name):
            return compile(source, "<made>", "exec")

    module.__spec__ = types.SimpleNamespace(loader=Loader())
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "ll_made", module)
    own_names.cache_clear()
    return module


SOURCE = "rate = 1\ncount = 0\n_cache = None\ndef f():\n    global count, late\n    count += 1; late = 2\n    return rate\n"


def test_baseline_tells_what_a_modules_own_functions_set_from_what_others_set(monkeypatch):
    module = made(monkeypatch, SOURCE)
    baseline = Baseline()
    baseline.begin()
    module.f()
    module._cache = 7
    assert baseline.set_by_others("ll_made", module) == []
    module.rate = True
    module.flag = 5
    assert sorted(baseline.set_by_others("ll_made", module)) == [("flag", True), ("rate", False)]


def test_baseline_judges_a_module_that_came_later_by_its_code(monkeypatch):
    module = made(monkeypatch, SOURCE)
    module.f()
    module.rate = 3
    module.flag = 5
    assert sorted(Baseline().set_by_others("ll_made", module)) == [("flag", True), ("rate", False)]


def test_baseline_takes_a_module_that_fills_itself_as_it_is_first_seen(monkeypatch):
    module = made(monkeypatch, SOURCE + "globals()['x' + 'y'] = 3\n")
    baseline = Baseline()
    assert baseline.set_by_others("ll_made", module) == []
    module.flag = float("nan")
    assert baseline.set_by_others("ll_made", module) == [("flag", True)]


def test_find_patches_leaves_values_of_libraries_that_no_variable_names(monkeypatch):
    module = made(monkeypatch, SOURCE)
    module.flag = 5
    assert PatchFinder({"x": 1}).find({}) == {}
    assert PatchFinder({"m": module}).find({}) == {("ll_made", "flag"): 5}


def test_finder_sees_each_change_between_two_looks_and_keeps_nothing_that_went(monkeypatch):
    module = types.ModuleType("ll_settings")
    monkeypatch.setitem(sys.modules, "ll_settings", module)
    space = {"m": module}
    finder = PatchFinder(space)
    places = []
    for change in ({"rate": 1}, {}, {"rate": 2}, {"name": "a", "rate": 2}, {"rate": None}):
        vars(module).update(change)
        places.append({attribute: value for (_, attribute), value in finder.find({}).items()})
    # What a module is when it is first looked at is its own.
    assert places == [{}, {}, {"rate": 2}, {"rate": 2, "name": "a"}, {"rate": None, "name": "a"}]
    del module.name
    assert finder.find({}) == {("ll_settings", "rate"): None}
    del space["m"]
    assert finder.find({}) == {}


@pytest.mark.parametrize("changed", [False, True])
def test_settings_of_a_persons_module_are_those_of_the_file_that_was_loaded(monkeypatch, tmp_path, changed):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text, time_s):
        (tmp_path / "ll_own.py").write_text(text)
        os.utime(tmp_path / "ll_own.py", (0, time_s))
        sys.modules.pop("ll_own", None)
        importlib.invalidate_caches()
        return importlib.import_module("ll_own")

    there = load("rate = 1\nseen = 0", 1)
    there.seen = 5
    patches = PatchFinder({"m": there}).find({})
    assert patches["ll_own", "seen"] == 5
    # As another process loads it, whose file is the same or was changed in between.
    here = load("rate = 7\nseen = 0" if changed else "rate = 1\nseen = 0", 2 if changed else 1)
    try:
        assert apply_patches(patches) == []
        assert (here.rate, here.seen) == ((7, 0) if changed else (1, 5))
        assert vars(here).keys().isdisjoint({FILE_STATE})
    finally:
        apply_patches({})
        del sys.modules["ll_own"]
