"""Which objects an object refers to, as the walk for shared objects sees it: identity matters, atoms do not.

One handler per type, chosen once. A handler returns the children, or None for an object that is no node at all because
it is found again by name. Containers of nothing but atoms cost one pass at C speed.
"""

from __future__ import annotations

import collections
import enum
import gc
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from looseleaf.checkpoint import by_name, exceptions, widgets
from looseleaf.checkpoint.code_reducers import registered_with
from looseleaf.checkpoint.refusals import refusal_of_type
from looseleaf.checkpoint.stub import Stub
from looseleaf.units import MIB

# Immutable values without children, equal wherever they are made again.
ATOMS: Final[frozenset[Any]] = frozenset({
    int, float, complex, bool, str, type(None), type(Ellipsis), type(NotImplemented), range, types.CodeType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
})  # fmt: skip
# The atoms that containers are full of, and that every pickler knows.
_PASSED_BY: Final[frozenset[Any]] = frozenset({int, float, complex, bool, str, type(None)})
# Bytes of at least this size are payloads, and then their identity matters.
BYTES_PAYLOAD_MIN: Final = 1 * MIB

Children = Iterable[Any] | None
Handler = Callable[[Any], Children]
_NONE: Final[tuple[Any, ...]] = ()


class Edges:
    """The children of objects during one walk; `on_array`, `on_tensor` and `on_bytes` are told of memory that is met.

    `cut`: ids of objects that are not state, such as the session's namespace dict.
    """

    def __init__(
        self,
        cut: Iterable[int],
        *,
        on_array: Callable[[Any], Sequence[Any]],
        on_tensor: Callable[[Any], Sequence[Any]],
        on_storage: Callable[[Any], Sequence[Any]],
        on_bytes: Callable[[Any], None],
    ) -> None:
        self.cut = set(cut)
        self._module_dicts = by_name.module_dicts()
        self.cut.update(self._module_dicts)
        self._on_tensor = on_tensor
        self._on_storage = on_storage
        self._on_array = on_array
        self._on_bytes = on_bytes
        self._singletons: dict[type, dict[int, str]] = {}
        self._handlers: dict[type, Handler | None] = dict.fromkeys(ATOMS)
        self._handlers.update({
            list: self._sequence, tuple: self._sequence, set: self._sequence, frozenset: self._sequence,
            collections.deque: self._sequence, dict: self._dict, bytes: self._bytes, bytearray: self._bytearray,
            types.ModuleType: self._module, types.FunctionType: self._function, types.CellType: self._referents,
            types.BuiltinFunctionType: self._builtin, types.TracebackType: _leaf, types.FrameType: _leaf,
            weakref.ref: self._weakref, Stub: _leaf,
        })  # fmt: skip

    def handler(self, kind: type) -> Handler | None:
        """The handler of exactly this type; None: an atom."""
        try:
            return self._handlers[kind]
        except KeyError:
            found = self._handlers[kind] = self._classify(kind)
            return found

    def singleton_name(self, value: Any) -> str | None:
        """The attribute of its class's own module that `value` is, if any."""
        kind = type(value)
        names = self._singletons.get(kind)
        if names is None:
            names = self._singletons[kind] = by_name.module_instances(kind)
        return names.get(id(value))

    def _classify(self, kind: Any) -> Handler | None:
        if issubclass(kind, type):
            return self._class
        if refusal_of_type(kind) is not None:
            return _leaf
        if issubclass(kind, BaseException):
            return exceptions.parts
        if issubclass(kind, logging.Logger):
            return self._logger
        if issubclass(kind, types.ModuleType):
            return self._module
        if issubclass(kind, weakref.ref):
            return self._weakref
        if issubclass(kind, enum.Enum) and by_name.is_importable(kind):
            return None
        if widgets.is_widget_part(kind):
            return widgets.parts
        return self._classify_library(kind)

    def _classify_library(self, kind: type) -> Handler | None:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and hasattr(numpy, "ndarray"):
            if issubclass(kind, numpy.ndarray):
                return self._on_array
            if issubclass(kind, (numpy.generic, numpy.dtype)):
                return None
        if torch is not None and hasattr(torch, "UntypedStorage"):
            if issubclass(kind, torch.Tensor):
                return self._on_tensor
            if issubclass(kind, (torch.UntypedStorage, torch.storage.TypedStorage)):
                return self._on_storage
            if issubclass(kind, (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)):
                return None
        return self._generic

    def _sequence(self, value: Iterable[Any]) -> Children:
        return _NONE if set(map(type, value)) <= _PASSED_BY else list(value)

    def _dict(self, value: dict[Any, Any]) -> Children:
        if id(value) in self.cut:
            return None
        keys = _NONE if set(map(type, value)) <= _PASSED_BY else list(value)
        if set(map(type, value.values())) <= _PASSED_BY:
            return keys
        return [*keys, *value.values()]

    def _bytes(self, value: bytes) -> Children:
        if len(value) < BYTES_PAYLOAD_MIN:
            return None
        self._on_bytes(value)
        return _NONE

    def _bytearray(self, value: bytearray) -> Children:
        self._on_bytes(value)
        return _NONE

    def _module(self, value: types.ModuleType) -> Children:
        return None if by_name.is_importable_module(value) else [value.__dict__]

    def _function(self, value: types.FunctionType) -> Children:
        if by_name.is_importable(value):
            return None
        skipped = {id(value.__code__), id(getattr(value, "__builtins__", None))}
        return [child for child in gc.get_referents(value) if id(child) not in skipped]

    def _builtin(self, value: types.BuiltinFunctionType) -> Children:
        owner = value.__self__
        return None if owner is None or isinstance(owner, types.ModuleType) else [owner]

    def _class(self, value: type) -> Children:
        if by_name.is_importable(value):
            return None
        children = [child for child in vars(value).values() if type(child) not in ATOMS]
        return [type(value), *value.__bases__, *children, *registered_with(value)]

    def _logger(self, value: logging.Logger) -> Children:
        return [value.handlers, value.filters]

    def _weakref(self, value: weakref.ref[Any]) -> Children:
        return [value(), value.__callback__]

    def _referents(self, value: Any) -> Children:
        return gc.get_referents(value)

    def _generic(self, value: Any) -> Children:
        if self.singleton_name(value) is not None and by_name.is_library_module(type(value).__module__):
            return None
        return gc.get_referents(value)


def _leaf(_: Any) -> Children:
    return _NONE
