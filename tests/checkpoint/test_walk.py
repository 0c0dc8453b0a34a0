"""The native walk against the definition of what it finds, on each kind of container and on random graphs."""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_graph import ReferenceGraph

from looseleaf.checkpoint._native import ATOM, LEAF, REFERENTS, ObjectGraph
from looseleaf.checkpoint.edges import BYTES_PAYLOAD_MIN, Edges
from looseleaf.checkpoint.walk import Graph


class Open:
    pass


class Slotted:
    __slots__ = ("__weakref__", "left", "right")


def edges(on_bytes: Any = lambda value: None, cut: Any = ()) -> Edges:
    return Edges(
        cut, on_array=lambda array: array.ravel().tolist() if array.dtype.hasobject else [],
        on_tensor=lambda tensor: [], on_storage=lambda storage: [], on_arrow=lambda value: [],
        on_bytes=on_bytes,
    )  # fmt: skip


def walked(*roots: Any, forced: Any = (), **options: Any) -> Graph:
    graph = Graph(edges(**options), forced)
    for number, root in enumerate(roots):
        graph.add_root(f"r{number}", root)
    graph.find_heads()
    return graph


def head_of(graph: Graph, value: Any) -> Any:
    return graph.object(graph.head(graph.node_of(value)))


def in_instance(value: Any) -> Any:
    made = Open()
    made.x = value
    return made


def in_slots(value: Any) -> Any:
    made = Slotted()
    made.left = value
    return made


def in_cell(value: Any) -> Any:
    return types.CellType(value)


def in_closure(value: Any) -> Any:
    return lambda: value


def in_object_array(value: Any) -> Any:
    made = np.empty(2, dtype=object)
    made[1] = value
    return made


CONTAINERS = {
    "list": lambda value: [1, value],
    "tuple": lambda value: (value, "a"),
    "dict": lambda value: {"k": value},
    "deque": lambda value: collections.deque([value]),
    "ordered dict": lambda value: collections.OrderedDict(k=value),
    "default dict": lambda value: collections.defaultdict(list, k=value),
    "mapping proxy": lambda value: types.MappingProxyType({"k": value}),
    "instance": in_instance,
    "slots": in_slots,
    "cell": in_cell,
    "closure": in_closure,
    "default": lambda value: eval("lambda x=v: x", {"v": value}),
    "bound method": lambda value: types.MethodType(len, value),
    "object array": in_object_array,
    "exception": ValueError,
    "namespace": lambda value: types.SimpleNamespace(k=value),
    # Of plain references there is one to an object.
    "weak reference": type("Reference", (weakref.ref,), {}),
}  # fmt: skip


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_object_that_two_containers_share_heads_a_unit(make: Any) -> None:
    shared, own = Open(), Open()
    first, second = make(shared), make(shared)
    alone = make(own)
    graph = walked(first, second, alone)
    assert head_of(graph, shared) is shared
    assert head_of(graph, own) is alone
    above = {id(graph.object(graph.head(node))) for node in graph.predecessors(graph.node_of(shared))}
    assert above == {id(first), id(second)}


def test_sets_and_keys_are_followed() -> None:
    shared = Open()
    graph = walked({shared}, {shared: 1}, frozenset([shared]))
    assert head_of(graph, shared) is shared and len(graph.predecessors(graph.node_of(shared))) == 3


def test_class_of_the_session_is_shared_by_its_instances() -> None:
    made = type("Made", (), {"__module__": "__main__"})
    one, other = made(), made()
    assert head_of(walked(one, other), made) is made


def test_atoms_and_what_is_found_by_name_are_no_nodes() -> None:
    cut: dict[str, Any] = {"x": []}
    graph = Graph(edges(cut=[id(cut)]), ())
    atoms = (1, "a", None, 2.0, True, ..., b"short", np.int8(1))
    for value in (*atoms, sys, len, Graph.__init__, collections.OrderedDict, cut):
        assert graph.add_root("x", value) == 0, value
    assert graph.add_root("y", [sys, cut, 1.5]) == 1
    assert len(graph) == 2


def test_long_bytes_are_nodes_and_told() -> None:
    told: list[Any] = []
    long, array = bytes(BYTES_PAYLOAD_MIN), bytearray(3)
    graph = walked([long, b"x", array], [long], on_bytes=told.append)
    assert told == [long, array] and told[0] is long
    assert head_of(graph, long) is long


def test_plain_units_are_told_from_others() -> None:
    shared: list[Any] = [1]
    plain, with_name, with_object, with_shared = [{"a": (1, b"x")}], [sys], [Open()], [shared]
    graph = walked(plain, with_name, with_object, with_shared, {0: shared})
    found = [graph.is_plain(graph.node_of(value)) for value in (plain, with_name, with_object, with_shared, shared)]
    assert found == [True, False, False, False, True]


def test_forced_object_heads_a_unit_though_one_refers_to_it() -> None:
    inner: list[Any] = [[1]]
    outer = [inner]
    graph = walked(outer, forced={id(inner)})
    assert head_of(graph, inner[0]) is inner and not graph.is_plain(graph.node_of(outer))


def test_root_inside_another_root_heads_a_unit_and_keeps_its_name() -> None:
    inner: list[Any] = [[]]
    graph = walked([inner], inner, inner)
    assert head_of(graph, inner[0]) is inner
    assert list(graph.root_names.values()) == ["r0"]


def test_chain_of_any_depth_is_walked() -> None:
    chain: Any = None
    for _ in range(200_000):
        chain = [chain]
    graph = walked(chain)
    assert len(graph) == 200_001 and graph.heads() == [1]
    graph = None
    while chain is not None:
        chain = chain[0]


def test_objects_live_as_long_as_the_graph() -> None:
    inner = Open()
    gone = weakref.ref(inner)
    holder = [inner]
    graph = walked(holder)
    address = id(inner)
    holder.clear()
    del inner
    assert graph.object(graph.node_at(address)) is gone()
    del graph
    gc.collect()
    assert gone() is None


def test_walk_reads_no_attribute_and_calls_no_method_of_an_object() -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __repr__ = None  # type: ignore[assignment]

    inner = Open()
    touchy = object.__new__(Touchy)
    object.__setattr__(touchy, "x", inner)
    assert head_of(walked([touchy]), inner) is not inner


def test_handler_that_raises_ends_the_walk_with_its_exception_and_loses_no_object() -> None:
    class Odd:
        pass

    def classify(kind: type) -> Any:
        return REFERENTS if kind is list else LEAF if kind is Open else refuse if kind is Odd else ATOM

    def refuse(value: Any) -> Any:
        raise KeyError("odd")

    leaf = Open()
    values = [leaf, Odd(), leaf]
    references = sys.getrefcount(leaf)
    graph = ObjectGraph(classify=classify, on_bytes=print, cut=(), forced=(), bytes_node_min=1)
    with pytest.raises(KeyError, match="odd"):
        graph.add_root(values)
    del graph
    assert sys.getrefcount(leaf) == references


@pytest.mark.parametrize("answer", [99, -1])
def test_wrong_action_is_refused(answer: int) -> None:
    graph = ObjectGraph(classify=lambda kind: answer, on_bytes=print, cut=(), forced=(), bytes_node_min=1)
    with pytest.raises(ValueError, match="no action"):
        graph.add_root([])


def test_handler_that_gives_no_sequence_is_refused() -> None:
    graph = ObjectGraph(classify=lambda kind: lambda value: 5, on_bytes=print, cut=(), forced=(), bytes_node_min=1)
    with pytest.raises(TypeError, match="sequence or None"):
        graph.add_root([])


def test_questions_out_of_order_are_refused() -> None:
    graph = Graph(edges(), ())
    graph.add_root("x", [])
    with pytest.raises(RuntimeError, match="not ended"):
        graph.head(1)
    graph.find_heads()
    with pytest.raises(RuntimeError, match="ended"):
        graph.add_root("y", [])
    for node in (-1, 0, 2):
        with pytest.raises(IndexError):
            graph.object(node)


KINDS = ("list", "dict", "deque", "instance", "slots", "array", "set", "tuple")


@st.composite
def object_graphs(draw: st.DrawFn) -> tuple[list[Any], set[int]]:
    """(roots, forced ids) among containers of all kinds with random references, cycles among the mutable ones."""
    objects: list[Any] = []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9)):
        known = draw(st.lists(st.integers(0, max(0, len(objects) - 1)), max_size=3)) if objects else []
        members = [objects[number] for number in known]
        if kind == "tuple":
            objects.append((*members, object()))
        elif kind == "set":
            objects.append({member for member in members if isinstance(member, (Open, Slotted))})
        else:
            objects.append({"list": list, "dict": dict, "deque": collections.deque, "instance": Open, "slots": Slotted}
                           .get(kind, lambda: np.full(3, None, dtype=object))())  # fmt: skip
    places = st.integers(0, len(objects) - 1)
    for origin, to in draw(st.lists(st.tuples(places, places), max_size=20)):
        _refer(objects[origin], objects[to])
    roots = [objects[number] for number in draw(st.lists(places, min_size=1, max_size=4))]
    return roots, {id(objects[number]) for number in draw(st.lists(places, max_size=2))}


def _refer(origin: Any, to: Any) -> None:
    """A reference more, if that kind of object can have one."""
    if isinstance(origin, (list, collections.deque)):
        origin.append(to)
    elif isinstance(origin, dict):
        origin[len(origin)] = to
    elif isinstance(origin, Open):
        setattr(origin, f"a{len(vars(origin))}", to)
    elif isinstance(origin, Slotted):
        setattr(origin, "right" if hasattr(origin, "left") else "left", to)
    elif isinstance(origin, np.ndarray):
        origin[sum(one is not None for one in origin) % 3] = to


@settings(max_examples=300)
@given(object_graphs())
def test_heads_edges_and_order_equal_their_definition(made: tuple[list[Any], set[int]]) -> None:
    roots, forced = made
    reference = ReferenceGraph(roots, forced)
    graph = walked(*roots, forced=forced)
    assert len(graph) == len(reference.objects)
    found = {id(graph.object(node)): id(graph.object(graph.head(node))) for node in range(1, len(graph))}
    assert found == reference.heads()
    assert graph.heads() == sorted(graph.node_at(address) for address in set(found.values()))
    assert all(graph.parent(node) < node for node in range(1, len(graph)))
    edges_found = {
        (origin and id(graph.object(origin)), id(graph.object(node)))
        for node in range(1, len(graph)) for origin in graph.predecessors(node)
    }  # fmt: skip
    assert edges_found == {
        (origin and id(reference.objects[origin]), id(reference.objects[to])) for origin, to in reference.edges
    }
