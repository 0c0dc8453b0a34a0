from __future__ import annotations

import pytest

from looseleaf.recipe import NameFacts


@pytest.mark.parametrize(
    ("cells", "target", "names"),
    [
        # transitive through code, latest definition
        (["a = 1", "def f(): return a", "def g(): return f()"], "g()", {"a", "f", "g"}),
        (["a = 1", "def f(): return a"], "x = f", {"a", "f"}),
        (["n = 0", "def f(k): return f(k - 1) + n"], "f(3)", {"f", "n"}),
        # 4: a decorator, an annotation
        (["class B: pass"], "def f(x: B): pass", {"B"}),
        # 11: what the decorator's wrapper reads
        (
            ["log = []", "def deco(f):\n  def w(*a):\n    log.append(1)\n  return w", "@deco\ndef g(): pass"],
            "g()",
            {"g", "deco", "log"},
        ),
        # 13: the session hides builtins
        (["type = int; list = [1]"], "print(type, len(list))", {"type", "list"}),
        # 15: aliases and partials hold the function
        (["a = 1", "def f(): return a", "g = f"], "g()", {"a", "f", "g"}),
        (
            ["a = 1", "import functools", "def f(): return a", "g = functools.partial(f)"],
            "g()",
            {"a", "f", "g"},
        ),
        # an instance holds its class, a subclass its base
        (["K = 2", "class A:\n def m(self): return K", "class B(A): pass", "x = B()"], "x.m()", {"x", "A", "B", "K"}),
        # a function called is not held by its result
        (["def make(): return 1", "x = make()"], "x + 1", {"x"}),
        # the cell's own bindings hide the session's, also for session code
        (["a = 1", "def f(): return a"], "a = 2\nf()", {"f"}),
        (["a = 1", "def f(): return a"], "f()\na = 2", {"a", "f"}),
        (["a = b = 1", "def f(): return g()", "def g(): return a"], "def g(): return b\nf()", {"b", "f"}),
        # 9: deletion alone needs no value
        (["x = y = 1"], "del x\nprint(y)", {"y"}),
        # 22
        (["p = 'a'"], "!ls {p}", {"p"}),
        # names in query strings
        (["lim = 3", "df = make()"], "df.query('a > @lim')", {"df", "lim"}),
        # pickles name classes
        (["class Net: pass", "x = 1", "import torch"], "torch.load('m.pt')", {"Net"}),
        (["class Net: pass", "m = Net()", "import torch"], "m.load_state_dict(torch.load('m.pt'))", {"Net", "m"}),
    ],
)  # fmt: skip
def test_closure_by_text_is_exact(ask, cells: list[str], target: str, names: set[str]) -> None:
    assert set(ask(target, *cells).state_names) == names


def test_closure_with_headers_follows_recorded_globals(ask) -> None:
    headers = {
        "g": NameFacts(kind="function", global_names=frozenset({"log"})),
        "log": NameFacts(),
        "other": NameFacts(),
    }
    assert ask("g()", "x = 1", headers=headers).state_names == ("g", "log")


def test_closure_with_headers_has_only_live_names(ask) -> None:
    analysis = ask("a + b + len(c)", "a = b = c = 1", headers={"a": NameFacts()})
    assert analysis.recipe.names == ("a",)


def test_closure_dynamic_access_needs_everything(ask) -> None:
    analysis = ask("exec(code)", "a = b = 1", "import numpy as np", "code = 'a'")
    assert analysis.recipe.dynamic
    assert analysis.recipe.names == ("a", "b", "code", "np")


def test_closure_import_bound_names_are_bound_but_not_counted(ask) -> None:
    analysis = ask("np.zeros(x)", "import numpy as np", "x = 3")
    assert analysis.recipe.names == ("np", "x")
    assert analysis.state_names == ("x",)
    assert analysis.recipe.live_names == 1


def test_closure_module_headers_are_not_counted(ask) -> None:
    headers = {"np": NameFacts(kind="module", modules=frozenset({"numpy"})), "x": NameFacts()}
    analysis = ask("np.zeros(x)", headers=headers)
    assert (analysis.state_names, analysis.recipe.live_names) == (("x",), 1)
    assert analysis.recipe.imports == ("numpy",)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("Out[2] + 1", {"_2"}),
        ("_oh[2], Out[30]", {"_2", "_30"}),
        ("Out[5]", set()),
        ("Out[i]", {"_2", "_30", "i"}),
        ("print(Out)", {"_2", "_30"}),
        ("Out[2], list(Out)", {"_2", "_30"}),
        ("read()", {"_2", "_30", "read"}),
        ("def f(): return Out[2]\nf()", {"_2"}),
        ("_ + __", {"_", "__"}),
        ("Out = {}\nOut[2]", set()),
    ],
)
def test_closure_of_the_table_of_results_is_its_entries(ask, source: str, names: set[str]) -> None:
    headers = {name: NameFacts() for name in ("_2", "_30", "_i", "i", "_", "__", "_0x")}
    headers["read"] = NameFacts(kind="function", global_names=frozenset({"Out"}))
    assert set(ask(source, headers=headers).state_names) == names


def test_closure_of_a_persons_own_table_is_that(ask) -> None:
    headers = {"_2": NameFacts(), "Out": NameFacts()}
    assert ask("Out[2]", headers=headers).state_names == ("Out",)


@pytest.mark.parametrize(
    ("cells", "target", "named", "through_objects"),
    [
        (["def f(): return 1", "g = map(f, [1])"], "list(g)", {"g"}, {"f"}),
        (["K = 1", "class C:\n  def m(self): return K", "c = C()"], "c.m()", {"c"}, {"C", "K"}),
        (["K = 1", "dl = Loader(ds, fn=lambda b: b + K)"], "dl.x", {"dl"}, {"K"}),
        (["K = 1", "h = lambda b: b + K"], "h(1)", {"h", "K"}, set()),
    ],
)
def test_closure_tells_names_from_what_objects_lead_to(
    ask, cells: list[str], target: str, named: set[str], through_objects: set[str]
) -> None:
    closure = ask(target, *cells).closure
    assert (closure.named, closure.state - closure.named) == (named, through_objects)


def test_closure_of_an_import_with_a_fallback_is_that_of_an_import(ask) -> None:
    analysis = ask("w.log(1)", "try:\n  import wandb as w\nexcept ImportError:\n  w = None")
    assert (analysis.state_names, analysis.recipe.imports) == ((), ("wandb",))


def test_closure_of_an_import_that_was_replaced_is_that_of_the_value(ask) -> None:
    assert ask("w.log(1)", "import w", "if c:\n  w = None").state_names == ("w",)
