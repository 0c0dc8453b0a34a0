"""A place in memory never stands for what lay there before."""

from __future__ import annotations


def test_save_of_memory_that_pickling_made_and_freed_never_lends_its_place(process):
    process("""
cell('''
import mmap
import numpy as np
places = {"now": mmap.mmap(-1, 1 << 20), "later": mmap.mmap(-1, 1 << 20)}
class Lazy:
    def __init__(self, array):
        self.number = int(array[0])
    def __reduce__(self):
        array = np.frombuffer(places["now"], np.uint8)
        array[:] = self.number
        return Lazy, (array,)
lazy = Lazy([7])
''')
save()
cell("array = np.frombuffer(places['now'], np.uint8); array[:] = 9; places['now'] = places['later']")
save()
""")
    assert process("restore('lazy', 'array'); result = check('(lazy.number, int(array[0]))')") == [7, 9]


def test_advance_that_drops_bytes_never_takes_their_place_for_them(process):
    result = process("""
from looseleaf.checkpoint.memory import Block, address_of_bytes
from looseleaf.checkpoint.tracker import StateTracker
cell("import fractions; a = {'b': bytes(2 << 20), 'f': fractions.Fraction(1, 2), 'n': 0}")
save()
other = {}
tracker2 = StateTracker(other, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a"])
other["a"]["n"] = 1
tracker2.save("x-other")
place = Block("cpu", address_of_bytes(check("a")["b"]), 2 << 20, "bytes")
before = tracker.labels.unit_id_of(place)
advance()
result = [before in tracker.manifest.payloads, tracker.labels.unit_id_of(place)]
""")
    assert result == [True, None]
