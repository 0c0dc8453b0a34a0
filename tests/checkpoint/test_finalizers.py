"""`__del__` of copies: it runs where the object dies, not where a copy of it is dropped (design §3)."""

from __future__ import annotations

# Each holder notes its own calls in `__calls__`, which is no variable of the session.
TWO_HOLDERS = """
from looseleaf.checkpoint.tracker import StateTracker
cell('''
__calls__ = []
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): __calls__.append(self.name)
class Slotted:
    __slots__ = ("name", "__weakref__")
    __init__, __del__ = Noisy.__init__, Noisy.__del__
class Listed(list):
    name = "listed"
    __del__ = Noisy.__del__
class Child(Noisy): pass
''')
def changed_elsewhere(source, *names):
    other = {"__calls__": []}
    holder = StateTracker(other, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
    holder.restore(names)
    exec(source, other)
    calls = list(other["__calls__"])
    holder.save("x-other")
    advance()
    cell("import gc; gc.collect(); __gone__ = [ref() is None for ref in __watched__]")
    return calls
"""


def test_finalizers_of_dropped_copies_do_not_run_whatever_their_class(process):
    result = process(
        TWO_HOLDERS
        + """
cell('''
a, b, c, d, e = Noisy("root"), [Noisy("within")], Slotted("slots"), Listed([1]), {"k": (Child("inherited"),)}
import weakref
__watched__ = [weakref.ref(value) for value in (a, b[0], c, d, e["k"][0])]
''')
save()
calls = changed_elsewhere("for v in (a, b[0], c, e['k'][0]): v.name = 'changed'\\nd.append(2)", *"abcde")
result = [calls, check("__gone__"), check("__calls__")]
"""
    )
    assert result == [[], [True] * 5, []]


def test_finalizer_of_an_object_that_died_elsewhere_ran_there_only(process):
    result = process(
        TWO_HOLDERS
        + """
cell("a = Noisy('a'); import weakref; __watched__ = [weakref.ref(a)]")
save()
result = [changed_elsewhere("del a", "a"), check("__gone__"), check("__calls__")]
"""
    )
    assert result == [["a"], [True], []]


def test_finalizer_of_an_object_that_stays_or_dies_here_still_runs(process):
    result = process(
        TWO_HOLDERS
        + """
cell('''
kept, changed = Noisy("kept"), []
changed.append(kept)
mine = Noisy("mine")
import weakref
__watched__ = [weakref.ref(kept), weakref.ref(mine)]
''')
save()
calls = changed_elsewhere("changed.append(1)", "changed")
cell("del kept, mine, changed")
save()  # what the stub of `changed` stands for holds `kept` until then
cell("gc.collect()")
result = [calls, check("__gone__"), sorted(check("__calls__"))]
"""
    )
    assert result == [[], [False, False], ["kept", "mine"]]
