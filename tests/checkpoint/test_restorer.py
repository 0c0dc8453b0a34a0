"""Restores whose objects run code of the session while they are made."""

from __future__ import annotations


def test_restore_of_an_object_whose_making_reads_other_variables_succeeds(process):
    process("""
cell('''
def size():
    return 3
class Sized:
    def __init__(self):
        self.items = [0] * size()
    def __getstate__(self):
        return {"nothing": None}
    def __setstate__(self, state):
        self.items = [1] * size()
sized = Sized()
holder = [sized, 5]
''')
save()
""")
    assert process("restore('holder'); result = check('[holder[0].items, holder[1]]')") == [[1, 1, 1], 5]


def test_restore_asks_once_for_all_memory_and_a_lost_region_costs_its_variable_only(process):
    process("""
cell("import numpy as np; a, b, c = (np.full(100_000, float(n)) for n in range(3)); d = b[5:]")
save()
""")
    result = process("""
asked = []
map_regions = io.map_regions
io.map_many = lambda groups: asked.append(len(groups)) or [map_regions(refs) for refs in groups]
io.map_regions = lambda refs: asked.append("alone") or map_regions(refs)
restore("a", "b", "c", "d")
result = [asked, check("[float(a[0]), float(b[0]), float(c[0]), d.base is b]")]
""")
    assert result == [[3], [0.0, 1.0, 2.0, True]]
    result = process("""
from looseleaf.errors import NotFound
tracker.restore(())
lost = tracker.manifest.payloads[tracker.manifest.closure(["b"]).payloads[0]].regions[0]
map_regions = io.map_regions
def lossy(refs):
    if lost in refs:
        raise NotFound("REGIONS_LOST", "a region is nowhere")
    return map_regions(refs)
io.map_regions = lossy
r = tracker.restore(["a", "b", "c", "d"])
result = [sorted(r.restored), sorted((f.name, f.reason) for f in r.failed), check("float(c[0])")]
""")
    assert result == [["a", "c"], [["b", "REGIONS_LOST"], ["d", "REGIONS_LOST"]], 2.0]


def test_restore_of_what_was_announced_asks_for_no_units_again(process):
    process("""
cell("import numpy as np; a, b, c = [1, np.ones(3)], {'k': np.zeros(2)}, [np.zeros(5), 7]")
save()
""")
    assert process("""
asked = []
fetch_units = io.fetch_units
io.fetch_units = lambda hashes: asked.append(len(hashes)) or fetch_units(hashes)
tracker.restore((), soon=["a", "b", "unknown"])
first, stubs = list(asked), tracker.stub_names()
restore("a", "b")
restore("c")
result = [len(first), len(asked), stubs, check("[a[1].sum(), b['k'].sum(), c[1]]")]
""") == [1, 2, ["a", "b", "c"], [3.0, 0.0, 7]]


def test_setting_that_this_process_cannot_follow_costs_no_variable(process):
    process("""
cell('''
import sys, types
made = types.ModuleType("made_here")
made.f = lambda: 7
sys.modules["made_here"] = made
x = 41
''')
save()
""")
    result = process("""
from looseleaf.checkpoint import library_state
section = library_state.SECTIONS["logging"]
def fails(values):
    raise RuntimeError("this version of the library has other settings")
library_state.SECTIONS["logging"] = library_state.Section(None, section.is_visible, section.read, fails)
r = tracker.restore(["x"])
logging_before = tracker.record["logging"]
import logging
logging.root.setLevel(5)
cell("x = x + 1")
save()
kept = tracker.record["logging"]["level"] == logging_before["level"] != 5
result = [check("x"), sorted(p.partition(" ")[0] for p in r.problems), kept, len(tracker.record["patches"])]
""")
    assert result == [42, ["logging", "made_here.f"], True, 1]


def test_settings_that_cannot_be_read_are_named_and_cost_no_variable(process):
    result = process("""
cell("import decimal; decimal.getcontext().prec = 9; x = 1")
save()
from looseleaf.checkpoint import library_state
section = library_state.SECTIONS["decimal"]
def fails(last):
    raise AttributeError("this version of the library has other settings")
library_state.SECTIONS["decimal"] = section._replace(read=fails)
cell("x = 2")
r = save()
result = [[(u.name, u.reason) for u in tracker.manifest.unsaved], tracker.record["decimal"]["prec"]]
""")
    assert result == [[["the settings of decimal", "NOT_SERIALIZABLE"]], 9]
    assert process("restore('x'); result = check('x')") == 2


def test_memory_of_what_was_announced_is_mapped_at_once_and_used_once(process):
    process("""
cell("import numpy as np; a, b, c = (np.full(100_000, float(n)) for n in range(3)); d = [b[5:], 'd']")
save()
""")
    assert process("""
asked = []
map_regions = io.map_regions
io.map_many = lambda groups: asked.append(len(groups)) or [map_regions(refs) for refs in groups]
io.map_regions = lambda refs: asked.append("alone") or map_regions(refs)
tracker.restore((), soon=["a", "b", "d", "unknown"])
first = len(tracker.ahead.memory)
restore("a", "unknown")
restore("d")
second = len(tracker.ahead.memory)
restore("b")
result = [asked, first, second, tracker.ahead.names, check("[float(a[0]), float(b[0]), d[0].base is b]")]
result[3] = sorted(result[3])
""") == [[2], 2, 0, [], [0.0, 1.0, True]]


def test_memory_that_was_mapped_ahead_serves_only_the_bytes_that_it_shows(process):
    process("""
cell("import numpy as np; a, b = np.zeros(100_000), np.ones(100_000)")
save()
""")
    assert process("""
from looseleaf.checkpoint.tracker import StateTracker
tracker.restore((), soon=["a", "b"])
mapped_first = dict(tracker.ahead.memory)
tracker2 = StateTracker(other := {}, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a"])
other["a"][7] = 7
tracker2.save("x-other")
tracker.restore((), version=2, soon=["a", "b"])
kept = sum(mapped_first.get(key) is value for key, value in tracker.ahead.memory.items())
restore("a", "b")
result = [kept, len(tracker.ahead.memory), check("[a.sum(), b.sum()]")]
""") == [1, 0, [7.0, 100_000.0]]


def test_memory_that_was_mapped_ahead_for_nothing_is_given_back(process):
    process("""
cell("import numpy as np; a, b, c = np.zeros(100_000), np.ones(100_000), np.full(100_000, 2.0)")
save()
""")
    assert process("""
from looseleaf.checkpoint.tracker import StateTracker
given_back = []
io.unmap_regions = given_back.extend
def shown(name):
    payloads = tracker.manifest.closure([name]).payloads
    return [ref for payload_id in payloads for ref in tracker.manifest.payloads[payload_id].regions]
tracker.restore((), soon=["a", "b", "c"])
a, b, c = map(shown, "abc")
tracker2 = StateTracker(other := {}, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a"])
other["a"][7] = 7
tracker2.save("x-other")
result = [given_back == []]
tracker.restore((), version=2, soon=["a", "b", "c"])
result.append(given_back == a)
tracker.restore((), soon=["a", "b"])
result.append(given_back == a + c)
restore("a", "b")
# What was used is the person's.
result += [given_back == a + c, check("[a.sum(), b.sum()]")]
""") == [True, True, True, True, [7.0, 100_000.0]]


def test_memory_that_a_failed_object_may_have_written_to_is_not_used_again(process):
    process("""
cell('''
import numpy as np
class Spoils:
    def __init__(self):
        self.data = np.zeros(100_000)
    def __setstate__(self, state):
        state["data"][0] = 5
        raise ValueError("not today")
s = Spoils()
data = s.data
''')
save()
""")
    assert process("""
tracker.restore((), soon=["s", "data"])
before = len(tracker.ahead.memory)
r = tracker.restore(["s"])
result = [[entry.name for entry in r.failed], sorted(tracker.ahead.names), before, len(tracker.ahead.memory)]
""") == [["s"], ["data"], 1, 0]
