"""The way from a variable to an object inside it, as a person would write it: `x.items[3]`."""

from __future__ import annotations

import collections
import types
from collections import deque
from itertools import pairwise
from typing import Any, Final

from looseleaf.checkpoint.class_answers import kept_by_class
from looseleaf.checkpoint.walk import Graph

_PATH_CHARS_MAX: Final = 500
_KEY_CHARS_MAX: Final = 40


def path_to(graph: Graph, node: int, root: int = 0) -> str:
    """The path of `node`, from the variable whose node is `root`, or from the one that the walk came from."""
    way = _way_between(graph, root, node) if root else _walked_way(graph, node)
    name = graph.root_names.get(way[0], "")
    text = name + _steps([graph.object(step) for step in way])
    return text if len(text) <= _PATH_CHARS_MAX else text[: _PATH_CHARS_MAX - 1] + "…"


def _walked_way(graph: Graph, node: int) -> list[int]:
    way = [node]
    while above := graph.parent(way[-1]):
        way.append(above)
    return way[::-1]


def _way_between(graph: Graph, root: int, node: int) -> list[int]:
    """A shortest way by any edges; the walked one if there is none."""
    onward: dict[int, int] = {node: 0}
    todo = deque([node])
    while todo:
        current = todo.popleft()
        if current == root:
            way = [root]
            while way[-1] != node:
                way.append(onward[way[-1]])
            return way
        for above in graph.predecessors(current):
            if above and above not in onward:
                onward[above] = current
                todo.append(above)
    return _walked_way(graph, node)


def _steps(way: list[Any]) -> str:
    text = ""
    # What the last object was reached as: the attributes, or the closure, of the one before.
    owner: Any = None
    for above, below in pairwise(way):
        if attributes_of(above) is below or (isinstance(above, types.FunctionType) and above.__closure__ is below):
            owner = above
            continue
        is_cell = isinstance(owner, types.FunctionType)
        text += _step_into_function(owner, below) if is_cell else _step(above, below, owner)
        owner = None
        if len(text) > _PATH_CHARS_MAX:
            break
    return text


def attributes_of(value: Any) -> Any:
    """The dict of an object's attributes, None if it has none; runs no code of its class."""
    # Finds what `_has_attributes` has found, in the same order.
    return object.__getattribute__(value, "__dict__") if _has_attributes(type(value)) else None


@kept_by_class
def _has_attributes(kind: type) -> bool:
    """Whether an instance has a dict of its own, and no class made something else of the name."""
    for base in type.__dict__["__mro__"].__get__(kind):
        found = type.__dict__["__dict__"].__get__(base).get("__dict__")
        if found is not None:
            return type(found) is types.GetSetDescriptorType
    return False


def _step(above: Any, below: Any, owner: Any) -> str:
    if isinstance(above, dict):
        for key, value in list(above.items()):
            if value is below:
                return f".{key}" if owner is not None else f"[{_key(key)}]"
            if key is below:
                return ".keys()"
    if isinstance(above, (list, tuple, collections.deque)):
        for index, value in enumerate(above):
            if value is below:
                return f"[{index}]"
    if isinstance(above, types.FunctionType):
        return ".<defaults>"
    if isinstance(above, types.CellType):
        return ""
    return _step_into_object(above, below)


def _key(key: Any) -> str:
    text = repr(key) if type(key) in (str, int, float, bool, bytes) else f"<{type(key).__name__}>"
    return text if len(text) <= _KEY_CHARS_MAX else text[: _KEY_CHARS_MAX - 1] + "…"


def _step_into_function(function: types.FunctionType, below: Any) -> str:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if cell is below:
            return f".<closure {name}>"
    return f".{next((key for key, value in function.__dict__.items() if value is below), '<attributes>')}"


def _step_into_object(above: Any, below: Any) -> str:
    attributes = attributes_of(above)
    for name, value in list(attributes.items()) if attributes is not None else ():
        if value is below:
            return f".{name}"
    for cls in type(above).__mro__:
        for name, member in list(vars(cls).items()):
            if isinstance(member, types.MemberDescriptorType):
                try:
                    if member.__get__(above, type(above)) is below:
                        return f".{name}"
                except AttributeError:
                    continue
    return f".<{type(below).__name__}>"
