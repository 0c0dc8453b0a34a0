"""Many small objects that several variables share, as one unit: a list of records and an index over the same ones.

Each shared object heads a unit of its own as a rule, so that any subset restores alone. Beyond some thousands of them
that costs more than it gives; then they share a unit, and are named by its id and their place in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from looseleaf.checkpoint.walk import Graph
from looseleaf.ids import UnitId

# More shared objects than this, that hold no memory blocks, go into a bundle.
BUNDLE_HEADS_MIN: Final = 4096


class Bundle:
    """Objects by place; a place whose object nobody refers to any more holds None. It keeps its members alive."""

    __slots__ = ("__weakref__", "members")

    def __init__(self, members: list[Any]) -> None:
        self.members = members

    def __getitem__(self, index: int) -> Any:
        return self.members[index]


def persistent_name(unit_id: UnitId, index: int) -> str:
    """What a pickle calls a member."""
    return f"{unit_id}:{index}"


def parse_name(name: str) -> tuple[UnitId, int] | None:
    """The unit and the place that `persistent_name` put together; None for other names."""
    unit_id, colon, index = name.partition(":")
    return (UnitId(int(unit_id)), int(index)) if colon and unit_id.isdecimal() and index.isdecimal() else None


def known_places(bundles: Iterable[tuple[UnitId, Bundle]]) -> dict[int, tuple[UnitId, int]]:
    """Where each object lies, by id(object); the bundles keep them alive."""
    return {
        id(member): (unit_id, index)
        for unit_id, bundle in bundles
        for index, member in enumerate(bundle.members)
        if member is not None
    }


def choose_members(
    graph: Graph, candidates: list[int], memory_users: Iterable[Any], least: int | None = None
) -> list[int]:
    """The nodes among `candidates` that go into a bundle: those without memory blocks, if they are many.

    `least`: how many that is; BUNDLE_HEADS_MIN if there is no bundle yet.
    """
    enough = BUNDLE_HEADS_MIN if least is None else least
    if len(candidates) <= enough:
        return []
    with_memory = {graph.head(graph.node_of(user)) for user in memory_users}
    chosen = [node for node in candidates if node not in with_memory]
    return chosen if len(chosen) > enough else []
