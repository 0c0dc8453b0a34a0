"""Which objects an object refers to, as the walk for shared objects sees it: identity matters, atoms do not.

One action per type, chosen once: an atom, a leaf, what the type itself tells the garbage collector, or a handler that
returns the children, or None for an object that is no node at all because it is found again by name.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import gc
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from looseleaf.checkpoint import by_name, exceptions, widgets
from looseleaf.checkpoint._native import ATOM, BYTES, LEAF, REFERENTS
from looseleaf.checkpoint.code_reducers import context_variable_parts, proxied, registered_with
from looseleaf.checkpoint.persons_code import BreakOff
from looseleaf.checkpoint.refusals import refusal_of_type
from looseleaf.checkpoint.stub import Stub
from looseleaf.units import MIB

# Immutable values without children, equal wherever they are made again.
ATOMS: Final[frozenset[Any]] = frozenset({
    int, float, complex, bool, str, type(None), type(Ellipsis), type(NotImplemented), range, types.CodeType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
})  # fmt: skip
_CONTAINERS: Final[tuple[Any, ...]] = (list, tuple, dict, set, frozenset, collections.deque, types.CellType)
# Bytes of at least this size are payloads, and then their identity matters.
BYTES_PAYLOAD_MIN: Final = 1 * MIB

Children = Sequence[Any] | None
Handler = Callable[[Any], Children]


def _record(value: Any) -> Children:
    from looseleaf.checkpoint.numpy_memory import note_record

    return note_record(value)


def _unfailing(handler: Handler) -> Handler:
    """`handler`, with what an object raises while it is looked at left for its own unit: others are saved."""

    def handle(value: Any) -> Children:
        try:
            return handler(value)
        except BreakOff:
            raise
        except BaseException:
            return []

    return handle


class Edges:
    """The children of objects during one walk; `on_array` and its like are told of memory that is met.

    `cut`: ids of objects that are not state, such as the session's namespace dict; those of modules are added.
    """

    def __init__(
        self,
        cut: Iterable[int],
        *,
        on_array: Callable[[Any], Sequence[Any]],
        on_tensor: Callable[[Any], Sequence[Any]],
        on_storage: Callable[[Any], Sequence[Any]],
        on_arrow: Callable[[Any], Sequence[Any]],
        on_bytes: Callable[[Any], None],
    ) -> None:
        self.cut = set(cut)
        self.cut.update(by_name.module_dicts())
        self.cut.update(by_name.library_tables())
        self.on_bytes = on_bytes
        self._on_tensor = on_tensor
        self._on_storage = on_storage
        self._on_array = on_array
        self._on_arrow = on_arrow
        # Stand-ins that were met.
        self.stubs: list[Stub] = []
        self._singletons: dict[type, dict[int, str]] = {}
        self._actions: dict[type, int | Handler] = dict.fromkeys(ATOMS, ATOM)
        self._actions.update(dict.fromkeys(_CONTAINERS, REFERENTS))
        self._actions.update({
            bytes: BYTES, bytearray: BYTES, types.ModuleType: self._module, types.FunctionType: self._function,
            types.BuiltinFunctionType: self._builtin, types.TracebackType: LEAF, types.FrameType: LEAF,
            weakref.ref: self._weakref, weakref.ProxyType: self._proxy, weakref.CallableProxyType: self._proxy,
            contextvars.ContextVar: self._context_variable,
        })  # fmt: skip

    def action(self, kind: type) -> int | Handler:
        """What is done with objects of exactly this type: an action of the native walk, or a handler."""
        try:
            found = self._actions.get(kind)
            if found is None:
                found = self._classify(kind)
        except BreakOff:
            raise
        except BaseException:
            # Such as a metaclass that answers no questions; its instances are looked at when they are pickled.
            found = REFERENTS
        return found if isinstance(found, int) else _unfailing(found)

    def end(self) -> None:
        """The walk is over: lets go of itself, so that what it met need not wait for the cyclic collector."""
        self._actions.clear()

    def _singletons_of(self, kind: type) -> dict[int, str]:
        """Instances that are attributes of their class's own module, by id."""
        names = self._singletons.get(kind)
        if names is None:
            names = self._singletons[kind] = by_name.module_instances(kind)
        return names

    def _classify(self, kind: Any) -> int | Handler:
        if issubclass(kind, Stub):
            return self._stub
        if issubclass(kind, type):
            return self._class
        if refusal_of_type(kind) is not None:
            return LEAF
        if issubclass(kind, BaseException):
            return exceptions.parts
        if issubclass(kind, logging.Logger):
            return self._logger
        if issubclass(kind, types.ModuleType):
            return self._module
        if issubclass(kind, weakref.ref):
            return self._weakref
        if issubclass(kind, enum.Enum) and by_name.is_importable(kind):
            return ATOM
        if widgets.is_widget_part(kind):
            return widgets.parts
        return self._classify_library(kind)

    def _classify_library(self, kind: type) -> int | Handler:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and hasattr(numpy, "ndarray"):
            if issubclass(kind, numpy.ndarray):
                return self._on_array
            if issubclass(kind, numpy.void):
                return _record
            if issubclass(kind, (numpy.generic, numpy.dtype)):
                return ATOM
        if torch is not None and hasattr(torch, "UntypedStorage"):
            if issubclass(kind, torch.Tensor):
                return self._on_tensor
            if issubclass(kind, (torch.UntypedStorage, torch.storage.TypedStorage)):
                return self._on_storage
            if issubclass(kind, (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)):
                return ATOM
        if (arrow := sys.modules.get("pyarrow")) is not None and hasattr(arrow, "Table"):
            from looseleaf.checkpoint.arrow_memory import HOLDERS

            if issubclass(kind, HOLDERS):
                return self._on_arrow
        if kind.__name__ == "BlockValuesRefs" and kind.__module__ == "pandas._libs.internals":
            # It refers weakly to everything that shares memory; those find it.
            return LEAF
        return self._generic if self._has_singletons(kind) else REFERENTS

    def _has_singletons(self, kind: type) -> bool:
        return bool(self._singletons_of(kind)) and by_name.is_library_module(kind.__module__)

    def _stub(self, value: Stub) -> Children:
        self.stubs.append(value)
        return ()

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
        return [weakref.ref.__call__(value), value.__callback__]

    def _proxy(self, value: Any) -> Children:
        return [proxied(value)]

    def _context_variable(self, value: contextvars.ContextVar[Any]) -> Children:
        return [child for part in context_variable_parts(value) for child in part]

    def _generic(self, value: Any) -> Children:
        return None if id(value) in self._singletons_of(type(value)) else gc.get_referents(value)
