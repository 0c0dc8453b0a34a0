"""Whether two namespaces hold the same objects: equal values in equal shape, classes, code and memory included."""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_ATOMS = (int, str, type(None), float, bytes, bool, complex, range)
_OF_EVERY_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__slotnames__"}


def assert_same_graph(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Two places hold one object here exactly if they hold one there; functions live in their own namespace."""
    assert list(first) == list(second)
    Comparison(first, second).check([(name, first[name], second[name]) for name in first])


class Comparison:
    """One walk over both sides; `first` and `second` are the globals of their functions."""

    def __init__(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        self._globals = (first, second)
        self._there: dict[int, Any] = {}
        self._here: dict[int, Any] = {}
        self._memory: list[tuple[str, Any, Any]] = []
        self._todo: list[tuple[str, Any, Any]] = []

    def check(self, pairs: list[tuple[str, Any, Any]]) -> None:
        self._todo = list(pairs)
        while self._todo:
            self._one(*self._todo.pop())
        self._compare_memory()

    def _one(self, path: str, a: Any, b: Any) -> None:
        if isinstance(a, type) and isinstance(b, type) and a.__module__ != "__main__":
            assert a is b, path
            return
        if type(a) is not type(b):
            assert type(a).__module__ == type(b).__module__ == "__main__", (path, type(a), type(b))
        if isinstance(a, _ATOMS):
            assert a == b, (path, a, b)
            return
        if id(a) in self._there or id(b) in self._here:
            assert self._there.get(id(a)) is b and self._here.get(id(b)) is a, f"{path} is shared on one side only"
            return
        self._there[id(a)], self._here[id(b)] = b, a
        if isinstance(a, (list, tuple, deque)):
            self._sequence(path, a, b)
        elif isinstance(a, dict):
            assert list(a) == list(b), path
            self._todo.extend((f"{path}[{key!r}]", a[key], b[key]) for key in a)
        elif isinstance(a, set):
            self._set(path, a, b)
        elif isinstance(a, np.ndarray) and a.dtype == object:
            assert a.shape == b.shape, path
            self._sequence(path, a.tolist(), b.tolist())
        elif isinstance(a, (np.ndarray, torch.Tensor)):
            self._array(path, a, b)
        elif isinstance(a, type):
            self._class(path, a, b)
        elif isinstance(a, types.FunctionType):
            self._function(path, a, b)
        elif isinstance(a, types.CellType):
            self._todo.append((f"{path}.cell", a.cell_contents, b.cell_contents))
        elif isinstance(a, types.MethodType):
            self._parts(path, a, b, "__func__", "__self__")
            self._forget(a, b)
        elif isinstance(a, functools.partial):
            self._parts(path, a, b, "func", "args")
            self._todo.append((f"{path}.keywords", dict(a.keywords), dict(b.keywords)))
        elif isinstance(a, (staticmethod, classmethod)):
            self._parts(path, a, b, "__func__")
        else:
            self._instance(path, a, b)

    def _forget(self, a: Any, b: Any) -> None:
        # Bound methods are made at each access: their identity is nobody's.
        del self._there[id(a)], self._here[id(b)]

    def _sequence(self, path: str, a: Any, b: Any) -> None:
        assert len(a) == len(b), path
        self._todo.extend((f"{path}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)))

    def _set(self, path: str, a: set[Any], b: set[Any]) -> None:
        assert len(a) == len(b), path
        plain = ({x for x in side if isinstance(x, _ATOMS)} for side in (a, b))
        assert next(plain) == next(plain), path

    def _parts(self, path: str, a: Any, b: Any, *names: str) -> None:
        for name in names:
            self._todo.append((f"{path}.{name}", getattr(a, name, None), getattr(b, name, None)))

    def _class(self, path: str, a: type, b: type) -> None:
        assert a.__name__ == b.__name__, path
        mine, other = ({k: v for k, v in vars(c).items() if k not in _OF_EVERY_CLASS} for c in (a, b))
        assert set(mine) == set(other), (path, set(mine) ^ set(other))
        self._sequence(f"{path}.__bases__", a.__bases__, b.__bases__)
        self._todo.extend((f"{path}.{key}", mine[key], other[key]) for key in mine if key != "__slots__")

    def _function(self, path: str, a: types.FunctionType, b: types.FunctionType) -> None:
        assert _code(a.__code__) == _code(b.__code__), path
        if a.__module__ == "__main__":
            assert a.__globals__ is self._globals[0] and b.__globals__ is self._globals[1], f"{path} has other globals"
        for name in ("__defaults__", "__kwdefaults__", "__closure__"):
            mine, other = getattr(a, name), getattr(b, name)
            assert (mine is None) is (other is None), f"{path}.{name}"
            if isinstance(mine, tuple):
                self._sequence(f"{path}.{name}", mine, other)
            elif mine is not None:
                self._todo.append((f"{path}.{name}", dict(mine), dict(other)))
        self._todo.append((f"{path}.__dict__", dict(a.__dict__), dict(b.__dict__)))

    def _instance(self, path: str, a: Any, b: Any) -> None:
        self._todo.append((f"type({path})", type(a), type(b)))
        if hasattr(a, "__dict__"):
            # A namespace's own dict is refused by name where it is held too.
            mine, other = vars(a), vars(b)
            plain = isinstance(a, types.SimpleNamespace)
            self._todo.append((f"vars({path})", *((dict(mine), dict(other)) if plain else (mine, other))))
        for name in getattr(type(a), "__slots__", ()):
            self._todo.append((f"{path}.{name}", getattr(a, name, None), getattr(b, name, None)))

    def _array(self, path: str, a: Any, b: Any) -> None:
        self._todo.append((f"type({path})", type(a), type(b)))
        assert a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape), path
        assert _strides(a) == _strides(b), path
        assert a.tolist() == b.tolist(), (path, a, b)
        if isinstance(a, np.ndarray):
            assert a.flags.writeable == b.flags.writeable, path
        else:
            assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf), path
            self._todo.append((f"{path}.grad", a.grad, b.grad))
        self._memory.append((path, a, b))

    def _compare_memory(self) -> None:
        for (path, a, b), (other_path, c, d) in itertools.combinations(self._memory, 2):
            here, there = _overlap(a, c), _overlap(b, d)
            assert here == there, f"{path} and {other_path} share memory on one side only"


def _code(code: types.CodeType) -> Any:
    consts = tuple(_code(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts)


def _strides(value: Any) -> tuple[int, ...]:
    return tuple(value.strides if isinstance(value, np.ndarray) else value.stride())


def _overlap(a: Any, b: Any) -> int | None:
    """How far `b` begins after `a` if they share memory, else None."""
    (start, end), (other_start, other_end) = _range(a), _range(b)
    if start < other_end and other_start < end:
        return other_start - start
    return None


def _range(value: Any) -> tuple[int, int]:
    if isinstance(value, torch.Tensor):
        at = value.data_ptr()
        size = value.element_size()
        strides = [stride * size for stride in value.stride()]
    else:
        at, size, strides = value.ctypes.data, value.itemsize, list(value.strides)
    if 0 in value.shape:
        return at, at
    reach = [stride * (n - 1) for stride, n in zip(strides, value.shape, strict=True)]
    return at + sum(x for x in reach if x < 0), at + sum(x for x in reach if x > 0) + size
