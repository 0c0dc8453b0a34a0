"""What recipes may know of the notebook's variables: live values and stubs, looked at only when asked for."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from looseleaf import devices
from looseleaf.checkpoint.by_name import is_importable
from looseleaf.checkpoint.code_names import names_read_by
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.names import HiddenNames
from looseleaf.checkpoint.stub import Stub, is_stub
from looseleaf.ids import UnitId
from looseleaf.recipe.name_facts import UNKNOWN_NAME, NameFacts, Payload, facts_of_root

# Objects that one derivation looks at, over all names: 2 to 3 ms. Beyond it a value counts as what was seen of it.
OBJECTS_MAX: Final = 1200
# Of a large container the first items stand for the rest.
ITEMS_MAX: Final = 64
_PLAIN: Final = (bool, int, float, str, type(None))
_ATOMS: Final = frozenset({bool, int, float, complex, str, bytes, bytearray, type(None), range, type(...), slice})
_SEQUENCES: Final = (list, tuple, set, frozenset, deque)
_PLAIN_CONTAINERS: Final = frozenset({dict, OrderedDict, Counter, *_SEQUENCES})
# Their instances hold their items and nothing else.
_BARE_CONTAINERS: Final = frozenset({dict, *_SEQUENCES})
# What widgets and callbacks hold of the running kernel: behind it lies everything, and nothing of the person's value.
_OF_THE_KERNEL: Final = frozenset({"ipykernel", "IPython", "comm", "zmq", "tornado"})
# Behind these lies a running program, and nothing that a recipe could use.
_RUNNING: Final = frozenset(
    {"asyncio", "_asyncio", "threading", "_thread", "selectors", "socket", "ssl", "multiprocessing"}
)  # fmt: skip
_NO_VALUES: Final = (types.FrameType, types.TracebackType, types.CodeType)
# Objects in another one that has no attributes, such as an iterator's.
REFERENTS_MAX: Final = 256
_LOOKED_AT: Final = (types.FunctionType, type, dict, *_SEQUENCES)


class SavedFacts:
    """Facts of the variables of one version, each made when first asked for and kept."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._found: dict[UnitId, NameFacts] = {}

    def get(self, name: str) -> NameFacts | None:
        """None for a name that the version does not have."""
        unit_id = self.manifest.roots.get(name)
        if unit_id is None:
            return None
        if unit_id not in self._found:
            self._found[unit_id] = facts_of_root(self.manifest, unit_id)
        return self._found[unit_id]


class LiveFacts(Mapping[str, NameFacts]):
    """Facts of every variable of `namespace` that is state, for one derivation. Loads nothing, runs no user code.

    Which names there are is looked at once, when it is made.

    A stub's facts are the `saved` ones, which are exact, and so are those of an object that is bound as it was saved
    (`saved_bindings`: ids by name): a cell may have changed it since, but hardly what kind of thing it holds. What any
    other value holds is found by a bounded look.
    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        hidden: Callable[[str], bool],
        saved: SavedFacts | None,
        saved_bindings: Mapping[str, int],
    ) -> None:
        self._namespace = namespace
        # In one step: threads of the person may bind names meanwhile.
        names = list(namespace)
        visible = hidden.visible(names) if isinstance(hidden, HiddenNames) else itertools.filterfalse(hidden, names)
        self._names = dict.fromkeys(visible)
        self._saved = saved
        self._saved_bindings = saved_bindings
        self._found: dict[str, NameFacts] = {}
        self._objects_left = OBJECTS_MAX

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> NameFacts:
        found = self._found.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(name)
            found = self._found[name] = self._look(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """As Mapping.get, for which a name that is not there is an exception."""
        found = self._found.get(name)
        if found is not None:
            return found
        return self[name] if name in self._names else default

    def count_modules(self, names: Iterable[str]) -> int:
        """How many of the variables are modules. Most values are told by their type, looked at once for all of it."""
        names = list(names)
        try:
            kinds = Counter(map(type, map(self._namespace.get, names)))
        except Exception:
            # A person's metaclass has no hash.
            return sum(map(self.is_module, names))
        modules = sum(count for cls, count in kinds.items() if issubclass(cls, types.ModuleType))
        if any(issubclass(cls, Stub) for cls in kinds):
            modules += sum(is_stub(self._namespace.get(name)) and self.is_module(name) for name in names)
        return modules

    def is_module(self, name: str) -> bool:
        """Whether the variable is a module, told without a look at anything else."""
        value = self._namespace.get(name)
        if issubclass(type(value), types.ModuleType):
            return True
        return is_stub(value) and self[name].kind == "module"

    def _look(self, name: str) -> NameFacts:
        value = self._namespace.get(name)
        if is_stub(value):
            return self._saved_facts(name) or UNKNOWN_NAME
        if type(value) in _PLAIN:
            return NameFacts(type_name=type(value).__name__, type_module="builtins", flag=value, has_flag=True)
        if type(value).__name__ == "device" and type(value).__module__ == "torch":
            # Devices are followed as their strings: `.to(device)` decides where a cell runs.
            modules = frozenset({"torch"})
            return NameFacts("instance", "device", "torch", modules=modules, flag=str(value), has_flag=True)
        # Functions are looked at always: of two with one name the second may lie where the first was.
        if type(value) not in _LOOKED_AT and self._saved_bindings.get(name) == id(value):
            if (saved := self._saved_facts(name)) is not None:
                return saved
        look = _Look(self._objects_left)
        look.at(value)
        self._objects_left = max(0, look.objects_left)
        return NameFacts(
            kind=_kind(value), type_name=type(value).__name__, type_module=str(type(value).__module__),
            global_names=frozenset(look.global_names), modules=frozenset(look.modules), payloads=look.payloads,
        )  # fmt: skip


    def _saved_facts(self, name: str) -> NameFacts | None:
        return self._saved.get(name) if self._saved is not None else None


def names_reached(value: Any, facts: Mapping[str, NameFacts]) -> set[str]:
    """The variables that code which `value` holds reads, such as a widget's callbacks, and code that these call."""
    look = _Look(OBJECTS_MAX)
    look.at(value)
    todo, reached = set(look.global_names), set[str]()
    while todo:
        name = todo.pop()
        if name not in reached and name in facts:
            reached.add(name)
            todo |= facts[name].global_names
    return reached


def _kind(value: Any) -> str:
    # By type, not isinstance: that would ask a proxy's `__class__`, which is a person's code.
    cls = type(value)
    if issubclass(cls, types.ModuleType):
        return "module"
    if issubclass(cls, type):
        return "class"
    if cls is types.FunctionType:
        return "function"
    return "value" if type(value).__module__ == "builtins" else "instance"


class _Look:
    """Breadth first over what a value holds, as far as plain attribute access without user code leads."""

    def __init__(self, objects_left: int) -> None:
        self.objects_left = objects_left
        self.global_names: set[str] = set()
        self.modules: set[str] = set()
        self.payloads: dict[int, Payload] = {}
        self._seen: set[int] = set()
        self._todo: deque[Any] = deque()
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        self._tensor_type: Any = getattr(torch, "Tensor", ())
        self._array_type: Any = getattr(numpy, "ndarray", ())

    def at(self, value: Any) -> None:
        """Looks at `value` and what it holds."""
        self._add((value,))
        while self._todo and self.objects_left > 0:
            current = self._todo.popleft()
            if is_stub(current) or id(current) in self._seen:
                continue
            self._seen.add(id(current))
            self.objects_left -= 1
            self._one(current)

    def _add(self, values: Iterable[Any]) -> None:
        # Most of what values hold are numbers and texts: they never get as far as the queue.
        self._todo.extend([value for value in values if type(value) not in _ATOMS])

    def _one(self, value: Any) -> None:
        # By type, as in `_kind`.
        cls = type(value)
        if cls in _BARE_CONTAINERS:
            self.modules.add(cls.__module__)
            self._add(_first_of(value, cls))
        elif issubclass(cls, types.ModuleType):
            self.modules.add(str(vars(value).get("__name__", "")))
        elif issubclass(cls, type):
            self._class(value)
        elif cls is types.FunctionType:
            self._function(value)
        elif cls is types.MethodType:
            self._add((value.__func__, value.__self__))
        elif cls is functools.partial:
            self._add((value.func, value.args, value.keywords))
        elif cls in (classmethod, staticmethod):
            self._add((value.__func__,))
        elif cls is property:
            self._add((value.fget, value.fset, value.fdel))
        elif str(cls.__module__).partition(".")[0] not in _OF_THE_KERNEL:
            self._instance(value, cls)

    def _class(self, cls: type) -> None:
        if is_importable(cls):
            self.modules.add(cls.__module__)
            return
        self._add((type(cls),))
        self._add(cls.__mro__[1:])
        self._add(value for name, value in list(vars(cls).items()) if name not in ("__dict__", "__weakref__"))

    def _function(self, function: types.FunctionType) -> None:
        if is_importable(function):
            self.modules.add(function.__module__)
            return
        self.global_names.update(names_read_by(function.__code__))
        self._add((function.__defaults__, function.__kwdefaults__, function.__dict__))
        for cell in function.__closure__ or ():
            try:
                self._add((cell.cell_contents,))
            except ValueError:
                continue  # not bound yet

    def _instance(self, value: Any, cls: type) -> None:
        self._add((cls,))
        attributes = _attributes(value)
        if self._tensor_type and issubclass(cls, self._tensor_type):
            self._tensor(value)
        elif self._array_type and issubclass(cls, self._array_type):
            if value.dtype == object:
                self._add(itertools.islice(value.flat, ITEMS_MAX))
            return
        elif issubclass(cls, (dict, *_SEQUENCES)):
            self._add(_first_items(value))
            self._add(_slots(value, cls))
        elif issubclass(cls, _NO_VALUES) or str(cls.__module__).partition(".")[0] in _RUNNING:
            return
        else:
            # Slots, and what iterators, generators and types of extensions hold; asks the types, runs no user code.
            held = itertools.islice(gc.get_referents(value), REFERENTS_MAX)
            self._add(part for part in held if part is not attributes)
        if attributes is not None:
            self._add(list(attributes.values()))

    def _tensor(self, tensor: Any) -> None:
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return  # sparse and other tensors without one storage
        device = devices.backend().device_of(storage)
        if device != "cpu":
            self.payloads[-1 - storage._cdata] = Payload(device, storage.nbytes())


def _first_items(value: Any) -> list[Any]:
    """`_first_of` a container of any class."""
    return _first_of(value, next(kind for kind in (dict, *_SEQUENCES) if issubclass(type(value), kind)))


def _first_of(value: Any, base: type) -> list[Any]:
    """Up to ITEMS_MAX items of a container, of a dict keys and values, by the builtin type's own iteration."""
    try:
        if base is dict:
            both = dict.keys(value), dict.values(value)
            return [part for parts in both for part in itertools.islice(parts, ITEMS_MAX)]
        return list(itertools.islice(base.__iter__(value), ITEMS_MAX))  # type: ignore[attr-defined]
    except RuntimeError:
        return []  # a thread of the person changed it meanwhile


def _slots(value: Any, cls: type) -> Iterator[Any]:
    """What a container keeps besides its items, such as a defaultdict's factory."""
    for base in () if cls in _PLAIN_CONTAINERS else cls.__mro__:
        for member in vars(base).values():
            if type(member) is types.MemberDescriptorType:
                try:
                    yield member.__get__(value)
                except AttributeError:
                    continue  # nothing is bound there


def _attributes(value: Any) -> dict[str, Any] | None:
    """The instance's `__dict__` without the class's own ideas of attribute access."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None
