"""A place in memory never stands for what lay there before."""

from __future__ import annotations


def test_save_of_memory_that_pickling_made_and_freed_never_lends_its_place(process):
    process("""
cell('''
import threading
import numpy as np
# What no walk sees into.
places = threading.local()
places.now, places.later = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
class Lazy:
    def __init__(self, array):
        self.number = int(array[0])
    def __reduce__(self):
        array = places.now[:]
        array[:] = self.number
        return Lazy, (array,)
lazy = Lazy([7])
''')
save()
cell("array = places.now[:]; array[:] = 9; places.now = places.later")
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


BIG = """
cell('''
import numpy as np, torch
big, other = np.zeros(3 << 20), np.ones(3 << 20)
named = {"big": big, "t": torch.zeros(5 << 20)}; alias = named
inner = [big, other]
a, b, trainer = {"i": inner}, [inner, 1], type("Trainer", (), {})()
trainer.parts = [named, inner]
del inner
''')
"""


def test_containers_of_much_memory_keep_their_units_over_saves_and_restores(process):
    saves = process(BIG + """
reports = [save() for _ in range(3)]
cell("b.append(2)")
reports.append(save())
result = [[r.version, r.units_written] for r in reports][1:]
""")
    assert saves == [[1, 0], [1, 0], [2, 1]]
    again = process("""
restore_all()
reports = [save()]
cell("trainer.parts.append('x')")
reports.append(save())
result = [[r.version, r.units_written] for r in reports]
""")
    assert again == [[2, 0], [3, 1]]


def test_container_that_took_the_place_of_a_dead_one_is_saved_as_what_it_is(process):
    process(BIG + """
save()
cell('''
first, second = id(a["i"]), id(b[0])
a["i"] = b[0] = trainer.parts[1] = None
fresh = [[k] for k in range(200)]
b[0] = next((f for f in fresh if id(f) == first), [0])
a["i"] = [other, big]
del fresh
''')
save()
""")
    found = process("""
restore("a", "b", "trainer", "big")
result = check("[a['i'][1] is big, len(a['i']), len(b[0]), trainer.parts[1], trainer.parts[0]['big'] is big]")
""")
    assert found == [True, 2, 1, None, True]
