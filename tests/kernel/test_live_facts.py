"""What recipes learn of live values without loading or running anything."""

from __future__ import annotations

import collections
import functools
import math
import sys
import types
from typing import Any

import numpy as np
import pytest

from looseleaf.checkpoint.manifest import Manifest, UnitEntry, UnitHeader
from looseleaf.checkpoint.stub import Stub
from looseleaf.ids import SessionId, UnitId, Version
from looseleaf.kernel.live_facts import OBJECTS_MAX, LiveFacts, SavedFacts
from looseleaf.recipe.name_facts import UNKNOWN_NAME

# Calls that a look at one object may take; every name adds some of its own.
CALLS_PER_OBJECT_MAX = 50


def facts_of(namespace: dict[str, Any], manifest: Manifest | None = None, bindings: Any = None) -> LiveFacts:
    saved = SavedFacts(manifest) if manifest is not None else None
    return LiveFacts(namespace, lambda name: name.startswith("_h"), saved, bindings or {})


def session_code(source: str) -> dict[str, Any]:
    """Names that cells define: their code belongs to `__main__`."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace


def version_of(**headers: UnitHeader) -> Manifest:
    names = list(headers)
    units = {UnitId(i): UnitEntry(bytes([i]) * 16, 10, (), headers[n]) for i, n in enumerate(names, 1)}
    roots = {name: UnitId(i) for i, name in enumerate(names, 1)}
    return Manifest(SessionId("s-1"), version=Version(3), next_id=99, roots=roots, units=units)


def test_mapping_leaves_hidden_names_out() -> None:
    facts = facts_of({"a": 1, "_hidden": 2})
    assert list(facts) == ["a"] and len(facts) == 1 and "_hidden" not in facts and facts.get("_hidden") is None
    assert facts.get("absent") is None


@pytest.mark.parametrize("value", [True, 3, 2.5, "cuda", None])
def test_plain_values_are_flags(value: Any) -> None:
    found = facts_of({"flag": value})["flag"]
    assert found.has_flag and found.flag == value and found.type_name == type(value).__name__


def test_module_is_told_without_a_look() -> None:
    facts = facts_of({"m": math, "n": 1})
    assert facts.is_module("m") and not facts.is_module("n")
    assert facts["m"].kind == "module" and facts["m"].modules == {"math"}


def test_modules_among_names_are_counted_whatever_classes_others_have() -> None:
    class NoHash(type):  # noqa: PLW1641 - that is the point
        def __eq__(cls, other: object) -> bool:
            return False

    class Package(types.ModuleType):
        """As lazily loaded packages have."""

    header = UnitHeader(kind="module", type_name="module", type_module="builtins")
    values: dict[str, Any] = {"m": math, "p": Package("p"), "n": 1, "s": Stub("s", UnitId(1), header, None), "v": []}
    assert facts_of(values, version_of(s=header)).count_modules(["m", "p", "n", "s", "v", "gone"]) == 3
    assert facts_of({**values, "h": NoHash("H", (), {})()}).count_modules(["m", "h"]) == 1


def test_containers_of_subclasses_with_attributes_are_looked_into() -> None:
    namespace = session_code("def f(): return wanted")

    class Rows(list):  # type: ignore[type-arg]
        pass

    rows, counted = Rows([1]), collections.Counter()
    rows.made_by = counted.made_by = namespace["f"]  # type: ignore[attr-defined]
    facts = facts_of({"rows": rows, "counted": counted, "ordered": collections.OrderedDict(k=namespace["f"])})
    assert all("wanted" in facts[name].global_names for name in ("rows", "counted", "ordered"))


def test_function_of_a_cell_tells_the_names_that_it_reads() -> None:
    namespace = session_code("def f(x, y=lambda: deep):\n    return helper(x) + [rate for _ in x]")
    found = facts_of({"f": namespace["f"]})["f"]
    assert found.kind == "function" and {"helper", "rate", "deep"} <= found.global_names


def test_class_of_a_cell_tells_what_its_methods_and_bases_read() -> None:
    source = "class Base:\n    def a(self): return alpha\nclass Net(Base):\n    @property\n    def b(self): return beta"
    namespace = session_code(source)
    found = facts_of({"net": namespace["Net"](), "Net": namespace["Net"]})
    assert found["Net"].kind == "class" and {"alpha", "beta"} <= found["Net"].global_names
    assert found["net"].kind == "instance" and {"alpha", "beta"} <= found["net"].global_names


def test_containers_partials_and_methods_are_looked_into() -> None:
    namespace = session_code("def f(): return wanted\nclass C:\n    def m(self): return other\n")
    f, instance = namespace["f"], namespace["C"]()
    values: dict[str, Any] = {
        "d": {"k": [(f,)]}, "p": functools.partial(print, f), "b": instance.m, "q": collections.deque([f]),
        "a": np.array([f, None], dtype=object),
    }  # fmt: skip
    facts = facts_of(values)
    assert all("wanted" in facts[name].global_names for name in ("d", "p", "q", "a"))
    assert "other" in facts["b"].global_names and "numpy" in facts["a"].modules


def test_stub_tells_what_was_saved() -> None:
    header = UnitHeader(modules=("torch.nn",), kind="instance", type_name="Linear", type_module="torch.nn")
    manifest = version_of(model=header)
    stub = Stub("model", UnitId(1), header, None)
    facts = facts_of({"model": stub, "strange": Stub("strange", None, None, None)}, manifest)
    assert facts["model"].modules == {"torch.nn"} and facts["model"].type_name == "Linear"
    assert facts["strange"] is UNKNOWN_NAME


def test_value_bound_as_it_was_saved_has_the_saved_facts() -> None:
    manifest = version_of(frame=UnitHeader(modules=("pandas.core", "pyarrow"), kind="instance", type_name="DataFrame"))
    value = types.SimpleNamespace()
    assert facts_of({"frame": value}, manifest, {"frame": id(value)})["frame"].modules == {"pandas.core", "pyarrow"}
    assert facts_of({"frame": value}, manifest, {"frame": 1})["frame"].modules == {"types"}


def test_container_and_function_are_looked_at_even_if_saved() -> None:
    manifest = version_of(d=UnitHeader(), f=UnitHeader())
    namespace = session_code("def f(): return fresh\nd = {'f': f}")
    values = {name: namespace[name] for name in ("d", "f")}
    facts = facts_of(values, manifest, {name: id(value) for name, value in values.items()})
    assert "fresh" in facts["d"].global_names and "fresh" in facts["f"].global_names


def test_look_runs_no_code_of_the_person() -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __len__(self) -> int:
            raise AssertionError("counted")

        @property
        def __class__(self) -> Any:
            raise AssertionError("asked for its class")

        @__class__.setter
        def __class__(self, value: Any) -> None:
            raise AssertionError("set")

    class Greedy(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError("listed")

    facts = facts_of({"t": Touchy(), "g": Greedy(a=1)})
    assert facts["t"].kind == "instance" and facts["g"].kind == "instance"


def test_look_at_very_much_is_bounded_for_all_names_together() -> None:
    rows = [[object() for _ in range(50)] for _ in range(60)]
    namespace = {f"deep_{n}": [rows, [rows]] for n in range(200)}
    namespace["wide"] = [list(range(10)) for _ in range(100_000)]
    facts = facts_of(namespace)
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for name in namespace:
            facts[name]
    finally:
        sys.setprofile(None)
    assert facts._objects_left == 0
    # Work, not time: of 100,000 lists and 200 grids of 3,000 objects only so many are touched.
    assert calls < CALLS_PER_OBJECT_MAX * OBJECTS_MAX, calls


def test_cycle_and_unbound_cell_end_the_look() -> None:
    source = "def outer():\n    def inner(): return late\n    if False: late = 1\n    return inner\ninner = outer()"
    namespace = session_code(source)
    ring: list[Any] = []
    ring.append(ring)
    facts = facts_of({"ring": ring, "inner": namespace["inner"]})
    assert facts["ring"].kind == "value" and facts["inner"].kind == "function"


HOLDING = [
    "def g():\n  while True: yield k\nheld = g()",
    "k = 1\ndef g():\n  x = yield k\nheld = g(); next(held)",
    "held = map(lambda x: k, [1])",
    "held = filter(lambda x: k, [1])",
    "held = zip([lambda: k])",
    "held = iter(lambda: k, 5)",
    "held = enumerate(map(lambda x: k, [1]))",
    "import itertools\nheld = itertools.chain([1], map(lambda x: k, [1]))",
    "import collections\nheld = collections.defaultdict(lambda: k)",
    "class P(dict):\n  __slots__ = ('f', 'unbound')\nheld = P(); held.f = lambda: k",
    "class S:\n  __slots__ = ('f', 'unbound')\nheld = S(); held.f = lambda: k",
    "class M(type):\n  def __call__(c): return k\nclass held(metaclass=M): pass",
    "class D:\n  def __get__(s, o, t): return k\nclass C:\n  x = D()\nheld = C()",
    "import functools\n@functools.singledispatch\ndef held(x): return 0\n@held.register\ndef _(x: int): return k",
    "import functools\nclass C:\n  @functools.cached_property\n  def p(self): return k\nheld = C()",
    "import types\nheld = types.MappingProxyType({'a': lambda: k})",
    "import weakref\nclass C: pass\nc = C()\nheld = weakref.ref(c, lambda r: k)",
    "import pandas as pd\nheld = pd.DataFrame({'a': [lambda: k]})",
    "import numpy as np\nheld = np.vectorize(lambda x: x + k)",
    "async def co(): yield k\nheld = co()",
    "xs = [lambda: k]\nheld = xs.append",
]


@pytest.mark.parametrize("source", HOLDING)
def test_names_that_held_code_reads_are_found_wherever_it_is_held(source: str) -> None:
    namespace = session_code(source)
    assert "k" in facts_of({"held": namespace["held"]})["held"].global_names


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio, gc\nloop = asyncio.new_event_loop(); loop.close(); held = [loop]",
        "import threading\nheld = threading.Thread(target=lambda: 1)",
        "def f(): return 1 / 0\ntry:\n  f()\nexcept ZeroDivisionError as e:\n  held = e",
        "import sys\nheld = sys._getframe()",
    ],
)
def test_behind_a_running_program_nothing_is_looked_for(source: str) -> None:
    namespace = session_code("secret = lambda: k\n" + source)
    facts = facts_of({"held": namespace["held"]})
    assert "k" not in facts["held"].global_names and facts._objects_left > OBJECTS_MAX - 200
