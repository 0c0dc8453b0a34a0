from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_base import BaseLimits, learned_base
from looseleaf.services.worker_daemon.core.zygote_facts import ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, NodeState, Tree, TreeKey
from looseleaf.services.worker_daemon.core.zygote_score import ImportTimes
from looseleaf.services.worker_daemon.core.zygote_tree import ImportCacheRules
from looseleaf.units import MIB

KEY = TreeKey(1)


def node(number: int, *added: str, size: int = 10, **more: Any) -> Node:
    facts = {"state": NodeState.SERVING, "private_bytes": size * MIB, "added": added, **more}
    return Node(NodeId(number), KEY, NodeId(1), frozenset(added), **facts)


def tree(*asked: frozenset[str]) -> Tree:
    return Tree(KEY, NodeId(1), deque(asked, maxlen=60))


def times(**seconds: float) -> ImportTimes:
    made = ImportTimes()
    made.measured(seconds)
    return made


BASE = Node(NodeId(1), KEY, None, frozenset({"torch"}), ("torch",), state=NodeState.SERVING)


def learned(asked: Tree, nodes: list[Node], known: ImportTimes, limits: BaseLimits | None = None) -> tuple[str, ...]:
    return tuple(learned_base(asked, BASE, nodes, known, limits))


def test_what_many_requests_want_comes_into_the_next_base_best_benefit_first() -> None:
    asked = tree(*[frozenset({"often", "slow"})] * 20, *[frozenset({"seldom"})] * 4)
    nodes = [node(2, "often"), node(3, "slow"), node(4, "seldom")]
    assert learned(asked, nodes, times(often=0.2, slow=2.0, seldom=9.0)) == ("slow", "often")


def test_few_requests_teach_nothing() -> None:
    asked = tree(*[frozenset({"often"})] * 19)
    assert learned(asked, [node(2, "often")], times(often=1.0)) == ()


def test_what_does_not_fit_is_left_out_and_the_next_taken() -> None:
    asked = tree(*[frozenset({"big", "small"})] * 30)
    nodes = [node(2, "big", size=300), node(3, "small")]
    assert learned(asked, nodes, times(big=99.0, small=0.2)) == ("small",)
    limits = BaseLimits(imports_max=1)
    assert learned(asked, [node(2, "big", "small"), node(3, "small")], times(), limits) == ("small",)


def test_only_nodes_that_serve_in_this_tree_are_trusted() -> None:
    asked = tree(*[frozenset({"x"})] * 30)
    other = Node(NodeId(5), TreeKey(2), NodeId(4), frozenset("x"), ("x",), state=NodeState.SERVING)
    base = Node(NodeId(1), KEY, None, frozenset("x"), ("x",), state=NodeState.SERVING)
    assert learned(asked, [node(2, "x", state=NodeState.DEAD), other, base], times(x=1.0)) == ()


def test_what_the_base_learned_outlives_one_install_after_the_other() -> None:
    """The requests go on as they were: pandas in all of them, and less and less of them after each install."""
    rules = ImportCacheRules()
    rules.times.measured({"pandas": 1.0})
    found: list[tuple[str, ...]] = []
    for generation, requests in enumerate((30, 30, 5, 0, 5)):
        key, before = TreeKey(generation + 1), TreeKey(generation)
        tree, base = rules.trees.get(before), rules.base(before)
        known = learned_base(tree, base, rules.nodes.values(), rules.times) if tree and base else {}
        rules.handle(ev.KeyOpened(key, known, before), 0.0)
        rules.handle(ev.KeyClosed(before), 0.0)
        found.append(tuple(known))
        if requests:
            rules.handle(ev.BaseReady(key, f"e{generation}", dict.fromkeys(("torch", *known), 1.0)), 0.0)
        for number in range(requests):
            request = 100 * generation + number
            rules.handle(ev.Requested(request, key, frozenset({"torch", "pandas"})), 0.0)
            for action in rules.handle(ev.Forked(request, 0.01), 0.0):
                assert isinstance(action, ev.Probe) and generation == 0
                result = ProbeResult(action.key, Verdict.CLEAN, {"pandas": 1.0}, MIB, frozenset({"pandas"}))
                assert rules.handle(ev.Probed(action.node, result), 0.0)
                rules.handle(ev.Built(action.node, {"pandas": 1.0}), 0.0)
    assert found == [(), *[("pandas",)] * 4]


def test_learned_import_that_nobody_wants_any_more_or_that_failed_in_the_base_is_left_out() -> None:
    asked = tree(*[frozenset({"often", "broken"})] * 30)
    asked.learned = dict.fromkeys(("often", "broken", "old"), MIB)
    base = Node(NodeId(1), KEY, None, frozenset({"torch", "often", "old"}), (), state=NodeState.SERVING)
    assert learned_base(asked, base, [], times(often=1.0, broken=1.0, old=1.0)) == {"often": MIB}


@settings(max_examples=40)
@given(
    st.lists(st.frozensets(st.sampled_from("abcdefgh")), max_size=60),
    st.lists(st.tuples(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(0, 200)), max_size=6),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 100 * MIB), max_size=3),
)
def test_what_is_learned_keeps_every_limit(
    window: list[frozenset[str]], groups: list[tuple[set[str], int]], before: dict[str, int]
) -> None:
    limits = BaseLimits(imports_max=3)
    asked = tree(*window)
    asked.learned = before
    nodes = [node(number + 2, *sorted(names), size=size) for number, (names, size) in enumerate(groups)]
    found = learned_base(asked, replace(BASE, imports=frozenset("abcdefgh")), nodes, times(), limits)
    assert len(found) <= limits.imports_max
    assert sum(found.values()) <= max(limits.private_bytes_max, sum(before.values()))
    if len(window) < limits.requests_min:
        assert found == before
