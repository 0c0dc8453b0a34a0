from __future__ import annotations

from collections import deque
from typing import Any

from looseleaf.services.worker_daemon.core.zygote_base import BaseLimits, learned_base
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, NodeState, Tree, TreeKey
from looseleaf.services.worker_daemon.core.zygote_score import ImportTimes
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


def test_what_many_requests_want_comes_into_the_next_base_best_benefit_first() -> None:
    asked = tree(*[frozenset({"often", "slow"})] * 20, *[frozenset({"seldom"})] * 4)
    nodes = [node(2, "often"), node(3, "slow"), node(4, "seldom")]
    assert learned_base(asked, nodes, times(often=0.2, slow=2.0, seldom=9.0)) == ("slow", "often")


def test_few_requests_teach_nothing() -> None:
    asked = tree(*[frozenset({"often"})] * 19)
    assert learned_base(asked, [node(2, "often")], times(often=1.0)) == ()


def test_what_does_not_fit_is_left_out_and_the_next_taken() -> None:
    asked = tree(*[frozenset({"big", "small"})] * 30)
    nodes = [node(2, "big", size=300), node(3, "small")]
    assert learned_base(asked, nodes, times(big=99.0, small=0.2)) == ("small",)
    limits = BaseLimits(imports_max=1)
    assert learned_base(asked, [node(2, "big", "small"), node(3, "small")], times(), limits) == ("small",)


def test_only_nodes_that_serve_in_this_tree_are_trusted() -> None:
    asked = tree(*[frozenset({"x"})] * 30)
    other = Node(NodeId(5), TreeKey(2), NodeId(4), frozenset("x"), ("x",), state=NodeState.SERVING)
    base = Node(NodeId(1), KEY, None, frozenset("x"), ("x",), state=NodeState.SERVING)
    assert learned_base(asked, [node(2, "x", state=NodeState.DEAD), other, base], times(x=1.0)) == ()
