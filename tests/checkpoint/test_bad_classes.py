"""Classes whose methods raise, lie, never end or have side effects: few may be called, and they cost
their own variable only."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

import pytest

# What pickling asks objects for, as on any Python; docs/not-preserved.md says so.
MAY_BE_CALLED = {
    "__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__class__",
    "__setstate__", "__new__", "meta __hash__", "meta __eq__",
}  # fmt: skip
COUNTING = '''
import collections
calls = collections.Counter()
def counted(name, answer):
    def method(self, *args, **kwargs):
        calls[name] += 1
        return answer(self, *args, **kwargs)
    return method
special = {
    "__eq__": lambda s, o: s is o, "__ne__": lambda s, o: s is not o, "__hash__": lambda s: 7, "__bool__": lambda s: False,
    "__len__": lambda s: 0, "__repr__": lambda s: "R", "__str__": lambda s: "S", "__iter__": lambda s: iter(()),
    "__contains__": lambda s, k: False, "__getitem__": lambda s, k: 1, "__call__": lambda s: 1, "__del__": lambda s: None,
    "__getattribute__": object.__getattribute__, "__format__": lambda s, f: "F", "__lt__": lambda s, o: False,
    "__dir__": lambda s: [], "__sizeof__": lambda s: 1, "__index__": lambda s: 1, "__int__": lambda s: 1,
    "__float__": lambda s: 1.0, "__enter__": lambda s: s, "__exit__": lambda s, *a: None, "__next__": lambda s: 1,
    "__array__": lambda s, *a, **k: None, "__copy__": lambda s: s, "__deepcopy__": lambda s, m: s,
    "__length_hint__": lambda s: 1, "__instancecheck__": lambda s, o: False, "__set_name__": lambda *a: None,
}
class Meta(type):
    def __getattribute__(cls, name):
        calls["meta " + name] += 1
        return type.__getattribute__(cls, name)
    def __instancecheck__(cls, value): calls["meta __instancecheck__"] += 1; return False
    def __subclasscheck__(cls, value): calls["meta __subclasscheck__"] += 1; return False
    def __eq__(cls, other): calls["meta __eq__"] += 1; return cls is other
    def __hash__(cls): calls["meta __hash__"] += 1; return 5
    def __len__(cls): calls["meta __len__"] += 1; return 0
    def __repr__(cls): calls["meta __repr__"] += 1; return "M"
Loud = type("Loud", (), {name: counted(name, answer) for name, answer in special.items() if name != "__getattribute__"})
def getattribute(self, name):
    calls["get " + name] += 1
    return object.__getattribute__(self, name)
class Asked(Loud):
    __getattribute__ = getattribute
class Shown:
    @property
    def __class__(self): calls["__class__"] += 1; return int
class Dictless:
    __slots__ = ("x",)
    @property
    def __dict__(self): calls["__dict__"] += 1; return {}
class Lazy:
    def __getattr__(self, name): calls["getattr " + name] += 1; raise AttributeError(name)
class Classy(metaclass=Meta): pass
'''
# Reading these of a class or an object runs the person's `__getattribute__` and is part of pickling.
ASKED = {
    "__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__class__", "__dict__",
    "__slots__", "__slotnames__", "__module__", "__qualname__", "__name__", "__mro__", "__bases__", "__flags__",
    "__new__", "__getattr__", "__setstate__", "__abstractmethods__", "__dir__", "_abc_impl", "__orig_bases__",
    "__objclass__", "mro", "__members__", "_member_type_", "__torch_dispatch__", "__getattribute__", "__file__", "__doc__",
}  # fmt: skip


def asked_beyond(calls):
    """The calls that no list allows."""
    found = {}
    for name, count in calls.items():
        kind, _, attribute = name.rpartition(" ")
        is_asked = attribute in ASKED and kind in ("get", "meta", "getattr")
        if not is_asked and name not in MAY_BE_CALLED:
            found[name] = count
    return found


def test_save_and_headers_call_nothing_but_what_pickling_calls(process):
    calls = process(f"""
cell({COUNTING!r})
cell('''
loud, asked, shown, lazy, classy = Loud(), Asked(), Shown(), Lazy(), Classy()
dictless = Dictless(); dictless.x = [1]
loud.self = [loud, {{"k": loud}}]; asked.other = loud; shared = {{"l": loud, "a": asked}}
both = [loud, asked, dictless, lazy, classy, Classy, (loud, loud)]
import functools, weakref, types
part = functools.partial(print, loud); method = loud.__repr__; ref = weakref.ref(loud)
proxy = types.MappingProxyType({{"loud": loud, 1: asked}})
''')
check("calls").clear()
report = save()
assert [u.name for u in report.unsaved] == ["shown"], report.unsaved
facts = tracker.facts()
for name in ("loud", "asked", "shown", "both", "classy"):
    tracker.describe(name)
cell("other = 1")
save()
result = dict(check("calls"))
""")
    assert asked_beyond(calls) == {}


def test_advance_calls_nothing_of_the_objects_that_it_drops(process):
    calls = process(f"""
cell({COUNTING!r}); cell("loud = Loud(); asked = Asked(); held = [loud, asked]; x = [1]; g = (i for i in held)")
save()
from looseleaf.checkpoint.tracker import StateTracker
other = {{}}
second = StateTracker(other, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
second.restore(["x"]); other["x"].append(2); second.save("x-2")
check("calls").clear()
advance()
result = {{name: count for name, count in check("calls").items() if name != "__del__"}}
""")
    assert asked_beyond(calls) == {}


def test_arrays_and_tensors_of_own_classes_are_saved_without_their_hooks(process):
    calls = process("""
cell('''
import collections, numpy as np, torch
calls = collections.Counter()
class Arr(np.ndarray):
    def __array_finalize__(self, other): calls["finalize"] += 1
    def __array_ufunc__(self, *a, **k): calls["ufunc"] += 1
    def __array_function__(self, *a, **k): calls["function"] += 1
    def __getitem__(self, k): calls["item"] += 1; return 0
    def __repr__(self): calls["repr"] += 1; return ""
    def __len__(self): calls["len"] += 1; return 0
class Ten(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        calls["torch " + f.__name__] += 1
        return super().__torch_function__(f, types, args, kwargs or {})
    def __repr__(self): calls["repr"] += 1; return ""
arr = np.zeros(5).view(Arr); ten = torch.ones(5).as_subclass(Ten)
''')
check("calls").clear()
assert not save().unsaved
tracker.describe("arr"), tracker.describe("ten")
result = dict(check("calls"))
""")
    assert calls == {}


RAISING = [
    "raise ValueError('no')", "raise KeyboardInterrupt", "raise SystemExit(3)", "raise GeneratorExit", "raise MemoryError",
    "raise StopIteration", "raise RecursionError", "raise type('Odd', (BaseException,), {})()",
    "raise type('Mute', (Exception,), {'__str__': lambda s: 1 / 0})()",
    "raise type('Deaf', (BaseException,), {'__str__': lambda s: exit(1)})()", "return self.__reduce__()", "exit(5)",
    "import sys; sys.exit('bye')", "return 7", "return ()", "return (print,)", "return (1, 2)", "return (print, 5)",
    "return (print, (), {}, 1, 2, 3, 4, 5)", "return 'no such global'", "return None",
    "return (dict, (), None, None, [(1,)])", "return (list, (), None, 5)", "return [print, ()]",
    "return (type(self), (type(self)(),))", "import itertools; return (list, (), None, itertools.repeat('x' * 100_000))",
    "import itertools; return (dict, (), None, None, ((i, i) for i in itertools.count()))",
]  # fmt: skip


@pytest.mark.parametrize("method", ["__reduce__", "__reduce_ex__", "__getstate__"])
def test_method_that_raises_lies_or_never_ends_costs_its_variable_only(process, method):
    bodies = [body for body in RAISING if method != "__getstate__" or "return" not in body]
    if method == "__reduce_ex__":
        bodies.remove("return self.__reduce__()")
    argument = ", protocol" if method == "__reduce_ex__" else ""
    result = process(f"""
import looseleaf.checkpoint.pickle_file as pickle_file
pickle_file.PICKLE_BYTES_MAX = 4 << 20
good = {{"text": [1, 2]}}
for number, body in enumerate({bodies!r}):
    cell(f"class B{{number}}:\\n    def {method}(self{argument}):\\n        {{body}}\\nbad{{number}} = [B{{number}}()]\\n")
cell("good = {{'text': [1, 2]}}; alias = good['text']")
report = save()
named = {{u.name: u for u in report.unsaved}}
saved = sorted(tracker.manifest.roots)
cell("good['text'].append(3)")
again = save()
result = [sorted(set(named)), sorted(saved), len(again.unsaved), sorted({{u.reason for u in named.values()}}),
    [body for n, body in enumerate({bodies!r}) if f"bad{{n}}" not in named]]
""")
    names, saved, again, reasons, got_through = result
    assert {"good", "alias"} <= set(saved)
    assert set(names) == {f"bad{n}" for n, body in enumerate(bodies) if body not in got_through}
    assert again == len(names)
    # These hold something that pickle takes; whether it can be made again is seen at the restore.
    assert got_through == []
    assert set(reasons) <= {"NOT_SERIALIZABLE", "TOO_DEEP", "OUT_OF_MEMORY", "UNIT_TOO_LARGE", "GENERATOR"}


@pytest.mark.parametrize("hook", ["__setstate__", "__new__", "module"])
def test_hook_that_raises_at_restore_costs_its_variable_only(process, tmp_path, hook):
    raising = [body for body in RAISING if body.startswith(("raise", "exit", "import sys"))]
    (tmp_path / "lib").mkdir()
    if hook == "module":
        for number, _ in enumerate(raising):
            (tmp_path / "lib" / f"fragile{number}.py").write_text("class B:\n    pass\n")
    process(f"""
import sys; sys.path.insert(0, {str(tmp_path / "lib")!r})
for number, body in enumerate({raising!r}):
    if {hook!r} == "module":
        cell(f"import fragile{{number}}; bad{{number}} = [fragile{{number}}.B()]; del fragile{{number}}")
    else:
        text = (f"class B{{number}}:\\n    armed = []\\n    def {hook}(self, *args):\\n        if B{{number}}.armed: {{body}}\\n"
            f"        return object.__new__(self) if {hook!r} == '__new__' else None\\n"
            f"    def __getstate__(self): return {{{{'x': 1}}}}\\n"
            f"bad{{number}} = [B{{number}}()]; B{{number}}.armed.append(1)\\n")
        cell(text)
cell("good = {{'text': [1, 2]}}; alias = good['text']; x = 5")
assert not save().unsaved
""")
    for number, body in enumerate(raising):
        (tmp_path / "lib" / f"fragile{number}.py").write_text(f"def f():\n    {body}\nf()\n")
    result = process("""
tracker.restore([])
names = [n for n in tracker.manifest.roots]
r = tracker.restore(names)
result = [sorted(f.name for f in r.failed), sorted({f.reason for f in r.failed}),
    sorted(tracker.stub_names()), check("good['text'] is alias")]
cell("alias.append(4)")
save()
assert sorted(tracker.manifest.roots) == sorted(names)
""")
    names = sorted(f"bad{number}" for number, _ in enumerate(raising))
    assert result[0] == result[2] == names
    assert set(result[1]) <= {"RESTORE_FAILED", "OUT_OF_MEMORY", "IMPORT_FAILED"}
    assert result[3] is True


def test_package_that_is_not_installed_is_named_and_costs_its_variables_only(process, tmp_path):
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "gonepkg.py").write_text("class Thing:\n    pass\ndef helper(): return 1\n")
    (lib / "thinner.py").write_text("class Kept:\n    pass\nclass Lost:\n    pass\n")
    process(f"""
import sys; sys.path.insert(0, {str(lib)!r})
cell("import gonepkg, thinner")
cell("a = gonepkg.Thing(); b = [a]; f = gonepkg.helper; m = gonepkg; k = thinner.Kept(); l = thinner.Lost(); ok = [1]")
cell("class Sub(gonepkg.Thing): pass\\ns = Sub()")
assert not save().unsaved
""")
    (lib / "gonepkg.py").unlink()
    (lib / "thinner.py").write_text("class Kept:\n    pass\n")
    result = process("""
tracker.restore([])
r = tracker.restore(list(tracker.manifest.roots))
result = {f.name: [f.reason, f.detail] for f in r.failed}
assert check("ok") == [1] and type(check("k")).__name__ == "Kept"
""")
    assert set(result) == {"a", "b", "f", "m", "gonepkg", "l", "Sub", "s"}
    assert {reason for name, (reason, _) in result.items() if name != "l"} == {"MODULE_MISSING"}
    assert all("`gonepkg`" in text for name, (_, text) in result.items() if name != "l")
    assert result["l"][0] == "DEFINITION_MISSING"
    assert "`thinner.Lost`" in result["l"][1]


def test_class_that_changed_its_shape_costs_its_variable_only(process, tmp_path):
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "shapes.py").write_text("class P:\n    __slots__ = ('x', 'y')\n\nclass Q:\n    pass\n")
    process(f"""
import sys; sys.path.insert(0, {str(lib)!r})
cell("import shapes; p = shapes.P(); p.x = 1; p.y = 2; q = shapes.Q(); q.z = 1; ok = [p]; fine = [1]")
save()
""")
    (lib / "shapes.py").write_text("class P:\n    __slots__ = ('x',)\n\nclass Q:\n    __slots__ = ()\n")
    result = process("""
tracker.restore([])
r = tracker.restore(list(tracker.manifest.roots))
result = sorted([f.name, f.reason] for f in r.failed)
assert check("fine") == [1]
""")
    assert result == [["ok", "RESTORE_FAILED"], ["p", "RESTORE_FAILED"], ["q", "RESTORE_FAILED"]]


def test_object_that_changes_what_is_saved_while_it_is_saved(process):
    result = process("""
cell('''
log = []; grows = {}
class Changes:
    def __getstate__(self):
        log.append(len(log)); grows[len(grows)] = Changes(); globals()[f"new{len(log)}"] = [len(log)]
        globals().pop("victim", None)
        return {"n": len(log)}
class Differs:
    count = 0
    def __reduce__(self):
        Differs.count += 1
        return (list, ([Differs.count],))
c = Changes(); d = Differs(); victim = [1]; z = {"c": c}
''')
first = save()
second = save()
names = sorted(tracker.manifest.roots)
result = [first.version, second.version, [u.reason for u in second.unsaved], "c" in names and "d" in names]
""")
    assert result[:2] == [1, 2]
    assert set(result[2]) <= {"NOT_SERIALIZABLE"}
    process("tracker.restore([]); r = tracker.restore(list(tracker.manifest.roots)); assert not r.failed, r.failed")


def test_deep_recursion_that_a_session_allows_itself_does_not_end_the_process(process):
    result = process("""
cell('''
import sys
sys.setrecursionlimit(10 ** 6)
deep = []
for _ in range(100_000): deep = [deep]
chain = None
for _ in range(5_000):
    error = ValueError(); error.__cause__ = chain; chain = error
def nest(inner): return lambda: inner
fn = None
for _ in range(4_000): fn = nest(fn)
d = {}
for _ in range(30_000): d = {"d": d}
good = [1]
''')
report = save()
unsaved = sorted((u.name, u.reason) for u in report.unsaved)
result = [unsaved, check("sys.getrecursionlimit()"), sorted(tracker.manifest.roots)]
""")
    assert result[1] == 10**6
    assert "good" in result[2]
    assert all(reason == "TOO_DEEP" for _, reason in result[0])
    loaded = process("restore_all(); result = [check('good'), check('sys.getrecursionlimit()')]")
    assert loaded == [[1], 10**6]
