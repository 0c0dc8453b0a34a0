"""Three holders of one session restore parts of it, change them and save, in any order: the whole stays one state.

The oracle runs the same cells on one plain namespace. Cells rebind, mutate, alias and delete variables, define
functions and classes anew, and leave things that cannot be saved.
"""

# Lines of cells stay in one piece.
# ruff: noqa: E501

from __future__ import annotations

import functools
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_graphs import make_tracker
from checkpoint_nursery import MemoryIO
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from same_graph import Comparison

from looseleaf.checkpoint.stub import is_stub, unsaved_of
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import PreconditionFailed

VALUES = [f"v{i}" for i in range(7)]
FUNCTIONS = ["f0", "f1"]
CLASSES = ["C0", "C1"]
POOL = [*VALUES, *FUNCTIONS, *CLASSES]
_NAME = re.compile(r"\b[vfC]\d\b")
HOLDERS = 3

# What a new value is made of: `{a}`, `{b}` are variables, `{n}` a number, `{size}` small or over the inline limit.
NEW = [
    "[{n}, {a}]", "{{'a': {a}, 'b': {b}}}", "({a}, {b})", "[{n}]", "{n}", "'text {n}'", "{a}", "{a}",
    "np.arange({size}.) + {n}", "torch.arange({size}.) + {n}", "torch.zeros({size}, requires_grad=True)",
    "types.SimpleNamespace(a={a}, n={n})", "deque([{a}, {n}])", "functools.partial(max, {a}, key={b})",
    "(lambda: {a})", "(lambda kept={a}: kept)", "(lambda kept: lambda: kept)({a})", "bytes({size})",
    "np.array([{a}, {n}, None, {b}, 0], dtype=object)[:4]", "torch.nn.Parameter(torch.ones({size}))",
    "np.arange({size}).reshape(-1, 1)[::2]",
]  # fmt: skip
OF_ARRAY = [
    "{a}[1:5]", "{a}[::2]", "{a}[3:]", "{a}.reshape(-1, 1)", "{a}[2:5][::1]", "{a}.T",
]  # fmt: skip
OF_CLASS = ["{c}()", "{c}({a})", "{c}.items", "{c}({b}).m", "[{c}(), {c}]"]
UNSAVED = ["(i for i in range({n}))", "[{a}, (i for i in range({n}))]", "{{'kept': {a}, 'g': iter([{n}])}}"]
DEFINE_CLASS = """class {c}({base}):
    items = [{a}]
    count = {n}
    def __init__(self, x=None):
        self.x = x
    def m(self):
        return {n}, self.x, {b}
    @staticmethod
    def s(x={a}):
        return x
    @property
    def p(self):
        return super().__init__"""
DEFINE_FUNCTION = [
    "def {f}(x={a}):\n    return x, {b}", "def {f}():\n    global {v}\n    {v} = {n}\n    return {n}",
    "def {f}(n={n}):\n    count = [{a}]\n    def inner():\n        nonlocal n\n        n += 1\n        return count, n\n    return inner",
]  # fmt: skip


def preamble() -> dict[str, Any]:
    from collections import deque

    return {
        "__name__": "__main__", "__builtins__": __builtins__, "np": np, "torch": torch, "types": types,
        "functools": functools, "deque": deque,
    }  # fmt: skip


class Holder:
    """A process with a part of the session."""

    def __init__(self, io: MemoryIO) -> None:
        self.namespace = preamble()
        self.tracker: StateTracker = make_tracker(self.namespace, io)
        hidden = set(self.namespace)
        self.tracker.hidden = lambda name: name in hidden
        self.stale: set[str] = set()

    def follow(self, io: MemoryIO) -> None:
        if len(io.versions) > self.tracker.version:
            report = self.tracker.advance(io.versions[-1])
            self.stale |= {name for name, _ in report.stale}

    def run(self, source: str) -> None:
        exec(compile(source, "<cell>", "exec", dont_inherit=True), self.namespace)


class Session(RuleBasedStateMachine):
    """`truth`: the namespace in which every cell ran."""

    def __init__(self) -> None:
        super().__init__()
        self.io = MemoryIO()
        self.truth = preamble()
        self.holders = [Holder(self.io) for _ in range(HOLDERS)]
        self.writer: Holder | None = None
        self.number = 0
        # A step is under way: it failed, if this is the end.
        self.in_step = False
        # Variables that the store lacks, and who holds them.
        self.unsaved: dict[str, Holder] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        self.in_step = True
        yield
        self.in_step = False

    # -- cells -----------------------------------------------------------------------------------------

    @rule(data=st.data(), which=st.integers(0, HOLDERS - 1), lines=st.integers(1, 4), save=st.booleans())
    def cell(self, data: st.DataObject, which: int, lines: int, save: bool) -> None:
        with self.step():
            holder = self.take(which)
            for _ in range(lines):
                self.line(data.draw, holder)
            if save:
                self.save()

    @rule(data=st.data(), which=st.integers(0, HOLDERS - 1))
    def look(self, data: st.DataObject, which: int) -> None:
        """A part is restored: what it shows is what the oracle has."""
        with self.step():
            holder = self.take(which)
            names = [name for name in POOL if name in self.truth and self.usable(name, holder)]
            if names:
                wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
                note(f"{which}: look {wanted}")
                self.restore(holder, wanted)
                pairs = [(name, self.truth[name], holder.namespace[name]) for name in wanted]
                Comparison(self.truth, holder.namespace).check(pairs)

    @rule(which=st.integers(0, HOLDERS - 1))
    def follow(self, which: int) -> None:
        """A holder hears of what was committed."""
        with self.step():
            note(f"{which}: follow")
            if self.writer is None or self.writer is self.holders[which]:
                self.holders[which].follow(self.io)

    @rule(which=st.integers(0, HOLDERS - 1))
    def replace(self, which: int) -> None:
        """A worker goes, and what only it held; an empty one comes."""
        with self.step():
            self.save()
            note(f"{which}: replace")
            gone = self.holders[which]
            self.holders[which] = Holder(self.io)
            for name in [name for name, holder in self.unsaved.items() if holder is gone]:
                del self.unsaved[name]
                self.truth.pop(name)
                holder = self.take((which + 1) % HOLDERS)
                holder.namespace.pop(name, None)
                self.save()

    def take(self, which: int) -> Holder:
        """The write token goes to this holder."""
        holder = self.holders[which]
        if self.writer not in (None, holder):
            self.save()
        holder.follow(self.io)
        holder.tracker.restore([])
        self.writer = holder
        return holder

    def save(self) -> None:
        if self.writer is None:
            return
        self.number += 1
        note(f"{self.holders.index(self.writer)}: save")
        report = self.writer.tracker.save(f"x-{self.number}")
        for entry in report.unsaved:
            self.unsaved.setdefault(entry.name, self.writer)
        names = {entry.name for entry in report.unsaved}
        self.unsaved = {name: holder for name, holder in self.unsaved.items() if name in names}
        self.writer.stale &= names
        self.writer = None

    def usable(self, name: str, holder: Holder) -> bool:
        return name not in holder.stale and self.unsaved.get(name, holder) is holder

    def restore(self, holder: Holder, names: list[str]) -> None:
        report = holder.tracker.restore(names)
        failed = [entry for entry in report.failed if self.unsaved.get(entry.name, holder) is holder]
        assert not failed, failed

    def line(self, draw: Any, holder: Holder) -> None:
        source = self.choose(draw, holder)
        if source is None:
            return
        names = self.names_of(source)
        if not all(name not in self.truth or self.usable(name, holder) for name in names):
            return
        note(f"{self.holders.index(holder)}: {source}")
        self.restore(holder, names)
        errors = []
        for run in (functools.partial(exec_in, self.truth), holder.run):
            try:
                run(source)
                errors.append("")
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                if isinstance(error, PreconditionFailed):
                    raise
        assert errors[0] == errors[1], (source, errors)

    def names_of(self, source: str) -> list[str]:
        """The variables that a line reads, as a recipe tells them: also through the functions that it may call."""
        todo, found = _NAME.findall(source), dict[str, None]()
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = None
                value = self.truth.get(name)
                todo += _read_by(value.__code__) if isinstance(value, types.FunctionType) else ()
        return list(found)

    # -- what a line does ------------------------------------------------------------------------------

    def choose(self, draw: Any, holder: Holder) -> str | None:
        live = [n for n in VALUES if n in self.truth and self.usable(n, holder)]
        classes = [n for n in CLASSES if n in self.truth and self.usable(n, holder)]
        functions = [n for n in FUNCTIONS if n in self.truth and self.usable(n, holder)]
        words = {
            "v": draw(st.sampled_from(VALUES)), "f": draw(st.sampled_from(FUNCTIONS)),
            "a": draw(st.sampled_from(live)) if live else "0", "b": draw(st.sampled_from(live)) if live else "None",
            "n": draw(st.integers(1, 9)), "size": draw(st.sampled_from([8, 8, 9000, 300_000])),
            "c": draw(st.sampled_from(classes)) if classes else "",
        }  # fmt: skip
        what = draw(st.sampled_from(["new", "array", "class", "define", "function", "mutate", "mutate", "mutate", "del", "unsaved"]))
        if what == "new":
            return "{v} = ".format(**words) + draw(st.sampled_from(NEW)).format(**words)
        if what == "array":
            arrays = [n for n in live if isinstance(self.truth[n], (np.ndarray, torch.Tensor))]
            if not arrays:
                return None
            name = draw(st.sampled_from(arrays))
            made = draw(st.sampled_from(OF_ARRAY)).format(a=name)
            value = self.truth[name]
            if isinstance(value, np.ndarray) and value.dtype != object and draw(st.booleans()):
                made = f"torch.from_numpy({name})"
            if isinstance(value, torch.Tensor):
                made = made.replace("::2]", "0:]").replace(".T", "[1:]")
                if value.requires_grad:
                    made = f"{name}.data{made.removeprefix(name)}"
            return f"{words['v']} = {made}"
        if what == "class" and classes:
            return "{v} = ".format(**words) + draw(st.sampled_from(OF_CLASS)).format(**words)
        if what == "define":
            name = draw(st.sampled_from(CLASSES))
            base = draw(st.sampled_from(["object", *(c for c in classes if c != name)]))
            return DEFINE_CLASS.format(**{**words, "c": name, "base": base})
        if what == "function":
            return draw(st.sampled_from(DEFINE_FUNCTION)).format(**words)
        if what == "mutate" and (names := [*live, *classes, *functions]):
            name = draw(st.sampled_from(names))
            return self.mutation(draw, name, self.truth[name], words)
        if what == "del" and (names := [*live, *classes, *functions]):
            return f"del {draw(st.sampled_from(names))}"
        if what == "unsaved" and draw(st.integers(0, 2)) == 0:
            return "{v} = ".format(**words) + draw(st.sampled_from(UNSAVED)).format(**words)
        return None

    def mutation(self, draw: Any, name: str, value: Any, words: dict[str, Any]) -> str | None:
        n, a = words["n"], words["a"]
        what = draw(st.sampled_from([a, f"[{n}]", str(n)]))
        if isinstance(value, list):
            return draw(st.sampled_from([f"{name}.append({what})", f"{name}.pop()", f"{name}[0] = {what}", f"{name} += [{n}]"]))
        if isinstance(value, dict):
            return draw(st.sampled_from([f"{name}['k{n}'] = {what}", f"{name}.pop('a', None)"]))
        if isinstance(value, np.ndarray) and value.dtype == object:
            return f"{name}[{n} % len({name})] = {what}"
        if isinstance(value, (np.ndarray, torch.Tensor)):
            return draw(st.sampled_from([
                f"{name}.data[{n} % len({name})] = {n}" if isinstance(value, torch.Tensor) else f"{name}[{n} % len({name})] = {n}",
                f"{name} *= 2" if isinstance(value, np.ndarray) or not value.requires_grad else f"{name}.grad = torch.ones_like({name})",
            ]))  # fmt: skip
        if isinstance(value, type):
            return draw(st.sampled_from([
                f"{name}.items.append({what})", f"{name}.count += 1", f"{name}.extra = {what}",
                f"{name}.m = lambda self: {what}",
            ]))  # fmt: skip
        if isinstance(value, types.FunctionType):
            return draw(st.sampled_from([f"{name}.note = {what}", f"{words['v']} = {name}()" if name.startswith("f") else f"{name}.note = {n}"]))
        if isinstance(value, types.SimpleNamespace) or type(value).__name__ in CLASSES:
            return draw(st.sampled_from([f"{name}.x = {what}", f"{name}.y{n} = {what}"]))
        return None

    # -- the end ---------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.in_step:
            return
        self.save()
        saved = {n: self.truth[n] for n in sorted(POOL) if n in self.truth and n not in self.unsaved}
        for holder in [Holder(self.io), *self.holders]:
            holder.follow(self.io)
            holder.tracker.restore([])
            for name, owner in self.unsaved.items():
                value = holder.namespace[name]
                assert is_stub(value) is (holder is not owner), name
                assert holder is owner or unsaved_of(value) is not None, name
            self.restore(holder, list(saved))
            there = {name: holder.namespace[name] for name in saved}
            self.compare(saved, there, holder)
            assert {n for n in POOL if n in holder.namespace} == {n for n in POOL if n in self.truth}

    def compare(self, saved: dict[str, Any], there: dict[str, Any], holder: Holder) -> None:
        fresh = [n for n, owner in self.unsaved.items() if owner is holder and n not in holder.stale]
        pairs = [(name, self.truth[name], holder.namespace[name]) for name in [*saved, *fresh]]
        Comparison(self.truth, holder.namespace).check(pairs)


def exec_in(namespace: dict[str, Any], source: str) -> None:
    exec(compile(source, "<cell>", "exec", dont_inherit=True), namespace)


def _read_by(code: types.CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _read_by(const)]
    return [name for name in code.co_names if name in POOL] + inner


HOW_MANY = [30, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(4 * 3600)])]


@pytest.mark.parametrize("examples", HOW_MANY)
def test_three_holders_of_one_session_are_one_namespace(examples: int) -> None:
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    steps = {"stateful_step_count": 20, "max_examples": examples, "deadline": None}
    run_state_machine_as_test(Session, settings=settings(suppress_health_check=health, **steps))
