"""The pickler of units: cloudpickle's, with our ways for what must keep its identity (design §3).

`persistent_id` answers for heads of units, payloads and namespaces: an int is a unit's or payload's id, 0 the session's
namespace, "dict:M" the namespace of module M, "attr:M:A" an attribute of module M.
"""

from __future__ import annotations

import copyreg
import enum
import logging
import marshal
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

import cloudpickle

from looseleaf.checkpoint import code_reducers, rebuild, session_instances
from looseleaf.checkpoint._native import make_persistent_id
from looseleaf.checkpoint.by_name import (
    is_importable,
    is_importable_module,
    is_library_module,
    is_made_module,
    library_tables,
    module_dicts,
    module_instances,
)
from looseleaf.checkpoint.exceptions import reduce_exception
from looseleaf.checkpoint.loaded_memory import inline_memory
from looseleaf.checkpoint.memory import Block, MemoryMap
from looseleaf.checkpoint.paths import attributes_of
from looseleaf.checkpoint.pickle_file import PickleFile
from looseleaf.checkpoint.progress_bars import is_progress_bar, reduce_progress_bar
from looseleaf.checkpoint.refusals import refusal_of_instance, standard_streams
from looseleaf.checkpoint.widgets import is_widget_part, reduce_widget
from looseleaf.errors import PreconditionFailed

PROTOCOL: Final = 5
# The session's namespace as a persistent id.
NAMESPACE_ID: Final = 0
# Whose `__getstate__` copies arrays, which others may hold, or leaves out what a person added: observers.
_COPYING: Final = ("numpy.polynomial._polybase", "traitlets.traitlets")


class PickleScope:
    """What all units of one save share: persistent ids by identity, the memory map, and facts that pickling brings up.

    `persistent_ids`: id(object) -> persistent id, of objects that live as long as the scope. `payload_of_head`: the
    payload of a byte string that heads a unit.
    `path_of(value)` names an object for a person.
    """

    def __init__(self, namespace: dict[str, Any], memory: MemoryMap, path_of: Callable[[Any], str]) -> None:
        self.memory = memory
        self.path_of = path_of
        self.persistent_ids: dict[int, int | str] = dict(module_dicts())
        self.persistent_ids.update(library_tables())
        # Last: the session's module may be registered under a second name.
        self.persistent_ids[id(namespace)] = NAMESPACE_ID
        self.payload_of_head: dict[int, int] = {}
        self.streams = {id(value): name for name, value in standard_streams().items() if value is not None}
        self._singletons: dict[type, dict[int, str]] = {}
        self._careful: dict[type, bool] = {}
        self.numpy = _imported("numpy", "ndarray")
        self.torch = _imported("torch", "UntypedStorage")
        self.arrow = _imported("pyarrow", "Table")
        self.pandas = _imported("pandas", "DataFrame")

    def needs_care(self, kind: type) -> bool:
        """Whether the usual way of pickling would lose something of instances of `kind`."""
        found = self._careful.get(kind)
        if found is None:
            found = self._careful[kind] = session_instances.needs_care(kind)
        return found

    def singletons_of(self, kind: type) -> dict[int, str]:
        """Attributes of the module of `kind` that are instances of it, by id."""
        found = self._singletons.get(kind)
        if found is None:
            found = self._singletons[kind] = module_instances(kind)
        return found


def _imported(name: str, attribute: str) -> Any:
    module = sys.modules.get(name)
    return module if hasattr(module, attribute) else None


class UnitPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one unit; afterwards `used` holds the persistent ids that it named, `kinds` the types that it met.

    `code`: code objects of the session's functions in the unit. `notes`: what was kept only in part. `last`: the object
    that it was busy with, for the path of an error.
    """

    def __init__(self, scope: PickleScope) -> None:
        self.file = PickleFile()
        super().__init__(self.file, protocol=PROTOCOL)
        self.scope = scope
        self.used: set[int | str] = set()
        self.kinds: set[type] = set()
        self.modules: set[str] = set()
        self.code: list[types.CodeType] = []
        self.notes: list[str] = []
        self.last: Any = None
        self.inline_memory: list[Block] = []
        self.generator_devices: list[str] = []
        self._ids = scope.persistent_ids
        # The id of an object that is stored elsewhere, else None.
        self.persistent_id = make_persistent_id(self._ids, self.used)

    def reducer_override(self, value: Any) -> Any:
        """How to take `value` apart; called for everything but the builtin containers and atoms."""
        self.last = value
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if issubclass(kind, type):
            return self._class(value)
        if kind is Block:
            return self._block(value)
        self.kinds.add(kind)
        if id(value) in self.scope.streams:
            return rebuild.stream, (self.scope.streams[id(value)],)
        refusal = refusal_of_instance(value)
        if refusal is not None:
            return self._refuse(value, refusal.reason, refusal.detail)
        special = self._library(value, kind)
        if special is not None:
            return special
        return self._instance(value, kind)

    def _refuse(self, value: Any, reason: str, detail: str) -> Any:
        if any(base.__module__.startswith("IPython.core.interactiveshell") for base in type(value).__mro__):
            return rebuild.shell, ()
        raise PreconditionFailed(reason, detail)

    def _function(self, value: types.FunctionType) -> Any:
        reduced = code_reducers.reduce_function(value, self._ids)
        if reduced is NotImplemented:
            self.modules.add(value.__module__)
        elif self._ids.get(id(value.__globals__)) == NAMESPACE_ID:
            self.code.append(value.__code__)
        return reduced

    def _class(self, value: type) -> Any:
        if is_importable(value):
            self.modules.add(value.__module__)
            if value.__module__ != "builtins":
                return NotImplemented
            place = code_reducers.place_of_nameless(value)
            return super().reducer_override(value) if place is None else (rebuild.module_attribute, place)
        generic = value.__dict__.get("__pydantic_generic_metadata__") or {}
        if generic.get("args"):
            # Pydantic finds the class of `Model[int]` again in a table.
            return operator.getitem, (generic["origin"], generic["args"])
        return code_reducers.reduce_class(value)

    def _block(self, block: Block) -> Any:
        assert not block.is_payload
        self.inline_memory.append(block)
        return inline_memory, (bytes(block.read()), block.device)

    def _library(self, value: Any, kind: type) -> Any:
        numpy, arrow = self.scope.numpy, self.scope.arrow
        if numpy is not None and issubclass(kind, numpy.ndarray):
            from looseleaf.checkpoint.numpy_memory import reduce_array

            return reduce_array(value, self.scope.memory)
        if numpy is not None and issubclass(kind, numpy.void):
            from looseleaf.checkpoint.numpy_memory import reduce_record

            return reduce_record(value)
        if arrow is not None and issubclass(kind, arrow.Buffer):
            from looseleaf.checkpoint.arrow_memory import reduce_buffer

            return reduce_buffer(value, self.scope.memory)
        if self.scope.pandas is not None:
            from looseleaf.checkpoint import pandas_objects

            if issubclass(kind, pandas_objects.KINDS):
                return pandas_objects.reduce_object(value, kind)
        return None if self.scope.torch is None else self._torch(self.scope.torch, value, kind)

    def _torch(self, torch: Any, value: Any, kind: type) -> Any:
        if issubclass(kind, torch.Tensor):
            return self._tensor(value)
        if issubclass(kind, (torch.UntypedStorage, torch.storage.TypedStorage)):
            from looseleaf.checkpoint.torch_memory import reduce_storage

            return reduce_storage(value, self.scope.memory)
        if issubclass(kind, (torch.finfo, torch.iinfo)):
            return kind, (getattr(torch, value.dtype),)
        if issubclass(kind, torch._C.Generator) and value.device.type != "cpu":
            self.generator_devices.append(str(value.device))
            return None
        data = torch.utils.data
        if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer, data.DataLoader, torch.amp.GradScaler)):
            from looseleaf.checkpoint import torch_objects

            if torch_objects.has_workers(value):
                self.notes.append(f"WORKERS_DROPPED {self.scope.path_of(value)}")
            return torch_objects.reduce_object(value, kind, self._ids)
        return None

    def _tensor(self, value: Any) -> Any:
        from looseleaf.checkpoint.torch_memory import reduce_tensor

        # No code of a subclass runs for a question.
        with self.scope.torch._C.DisableTorchFunctionSubclass():
            has_graph = value.grad_fn is not None
        if has_graph:
            self.notes.append(f"GRAPH_NOT_CARRIED {self.scope.path_of(value)}")
        return reduce_tensor(value, self.scope.memory, self.scope.path_of)

    def _instance(self, value: Any, kind: type) -> Any:
        if kind is types.BuiltinFunctionType:
            return code_reducers.reduce_builtin(value)
        reducer = code_reducers.REDUCERS.get(kind)
        if reducer is not None:
            if kind is code_reducers.LRU_CACHE_TYPE and value.cache_info().currsize:
                self.notes.append(f"CACHE_DROPPED {self.scope.path_of(value)}")
            return reducer(value)
        if is_widget_part(kind):
            return reduce_widget(value)
        if is_progress_bar(kind):
            return reduce_progress_bar(value)
        if kind is types.MethodType and id(value.__self__) in self.scope.streams:
            # Each process has streams of its own class.
            return getattr, (value.__self__, value.__name__)
        if issubclass(kind, logging.Logger):
            return code_reducers.reduce_logger(value)
        if issubclass(kind, BaseException):
            return reduce_exception(value)
        if issubclass(kind, enum.Enum) and not is_importable(kind):
            return code_reducers.reduce_enum_member(value)
        if issubclass(kind, weakref.ref):
            return code_reducers.reduce_weak_reference(value)
        if kind is types.CodeType:
            self.code.append(value)
            return marshal.loads, (marshal.dumps(value, code_reducers.MARSHAL_VERSION),)
        if kind is memoryview:
            reduced = code_reducers.reduce_memory_view(value)
            return reduced if reduced is not None else self._refuse(value, "MEMORY_VIEW", "a view of a part of memory")
        if kind is types.ModuleType or issubclass(kind, types.ModuleType):
            self.modules.add(value.__name__)
            if sys.modules.get(value.__name__) is value and is_made_module(value):
                raise PreconditionFailed("MADE_MODULE", "a module that a cell made and registered: write it to a file")
            if not is_importable_module(value) and _has_own_functions(value):
                text = "a module that a cell made, with functions over its own names: write it to a file instead"
                raise PreconditionFailed("MADE_MODULE", text)
            return NotImplemented
        name = self.scope.singletons_of(kind).get(id(value))
        if name is not None:
            return self._singleton(value, kind, name)
        reduced = self._adopted_dict(value)
        return session_instances.reduced(value, kind, reduced) if self.scope.needs_care(kind) else reduced

    def _singleton(self, value: Any, kind: type, name: str) -> Any:
        place = (rebuild.module_attribute, (kind.__module__, name))
        if is_library_module(kind.__module__):
            return place
        state = attributes_of(value)
        return place if state is None else (*place, state, None, None, rebuild.set_attributes)

    def _adopted_dict(self, value: Any) -> Any:
        """An object whose attribute dict is held by others too, or is the object itself."""
        if getattr(getattr(type(value), "__getstate__", None), "__module__", None) in _COPYING:
            return copyreg.__newobj__, (type(value),), vars(value)  # type: ignore[attr-defined]
        attributes = attributes_of(value)
        if attributes is not value and (type(attributes) is not dict or id(attributes) not in self._ids):
            return _reduced_past_getattr(value, attributes)
        reduced = value.__reduce_ex__(PROTOCOL)
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not _has_all(reduced[2], attributes):
            return _reduced_past_getattr(value, attributes)
        if not _can_adopt_dict(type(value)):
            raise PreconditionFailed("SHARED_ATTRIBUTES", "another variable holds the dict of its attributes")
        return (*reduced[:2], attributes, *(*reduced[3:5], None, None)[:2], rebuild.adopt_dict)


def _has_all(state: Any, attributes: dict[str, Any]) -> bool:
    """Whether the state of an object is all of its attributes; a library may add to them what is told from its code."""
    if state is attributes or type(state) is not dict or len(state) < len(attributes):
        return state is attributes
    return all(name in state and state[name] is value for name, value in attributes.items())


def _has_own_functions(module: types.ModuleType) -> bool:
    """Whether functions have its namespace as theirs: they would be moved with a copy of it."""
    names = vars(module)
    members = [*names.values(), *(m for cls in names.values() if isinstance(cls, type) for m in vars(cls).values())]
    return any(type(one) is types.FunctionType and one.__globals__ is names for one in members)


def _reduced_past_getattr(value: Any, attributes: Any) -> Any:
    """An object that is asked for no attribute before it has its own: its `__getattr__` may read one of them."""
    kind = type(value)
    if code_reducers.is_delegating(kind):
        return code_reducers.reduce_delegating(value)
    if type(attributes) is not dict or not hasattr(kind, "__getattr__") or hasattr(kind, "__setstate__"):
        return NotImplemented
    reduced = value.__reduce_ex__(PROTOCOL)
    if not isinstance(reduced, tuple) or len(reduced) not in (3, 4, 5) or type(reduced[2]) is not dict:
        return NotImplemented
    return (*(*reduced, None, None)[:5], rebuild.set_attributes)


def _can_adopt_dict(kind: type) -> bool:
    """True if instances of `kind` may be given another dict of attributes."""
    found = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return isinstance(found, types.GetSetDescriptorType)
