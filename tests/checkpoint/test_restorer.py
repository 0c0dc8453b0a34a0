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
