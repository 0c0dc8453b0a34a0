"""Stand-ins for values that live only in the store, or in another process: looking at one loads nothing (design §3)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeGuard

from looseleaf.devices import touch
from looseleaf.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from looseleaf.checkpoint.manifest import UnitHeader, Unsaved
    from looseleaf.ids import UnitId

_SLOTS: Final = ("_looseleaf_name", "_looseleaf_unit_id", "_looseleaf_header", "_looseleaf_unsaved")
# Classes of stubs, one for each class of saved values; values of further classes share one.
KINDS_MAX: Final = 1000
_SIZES: Final = ("shape", "dtype", "device")
_kinds: dict[tuple[str, str], type[Stub]] = {}
_is_viewing: ContextVar[bool] = ContextVar("looseleaf_viewing", default=False)


@contextmanager
def viewing() -> Iterator[None]:
    """Inside, whoever asks wants to show what there is, not to use it: what only the value can tell is not there,
    as an AttributeError or TypeError, instead of an error of this tree."""
    token = _is_viewing.set(True)
    try:
        yield
    finally:
        _is_viewing.reset(token)


# What this process knows of where a value is that was never saved, for people; empty if nothing.
_whereabouts: Callable[[Unsaved], str] = lambda _unsaved: ""


def tell_whereabouts(tell: Callable[[Unsaved], str]) -> None:
    """From now on stubs of this process say where values live that were never saved, as `tell` knows it."""
    global _whereabouts
    _whereabouts = tell


class Stub:
    """What a variable holds until its value is needed.

    `repr`, `dir`, the name of its type, `shape`, `dtype`, `device` and, of sized values, `len` answer from the saved
    header. Any other use, `isinstance` too, raises PreconditionFailed `NOT_RESTORED` (its value is in the store) or
    `NOT_SAVED` (it never got there), with the variable's name; see also `viewing`. Its class is a subclass of this one
    that is named after the class of the value: use `is_stub`.
    """

    __slots__ = _SLOTS

    def __new__(cls, name: str, unit_id: UnitId | None, header: UnitHeader | None, unsaved: Unsaved | None) -> Stub:
        """Of the class that is named after the value's."""
        return object.__new__(_kind_for(header, unsaved))

    def __init__(self, name: str, unit_id: UnitId | None, header: UnitHeader | None, unsaved: Unsaved | None) -> None:
        object.__setattr__(self, "_looseleaf_name", name)
        object.__setattr__(self, "_looseleaf_unit_id", unit_id)
        object.__setattr__(self, "_looseleaf_header", header)
        object.__setattr__(self, "_looseleaf_unsaved", unsaved)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # What isinstance asks for when it is not about stubs. IPython does so with the first word of each cell, before
        # it runs: is it a macro?
        if sys._getframe(1).f_globals.get("__name__", "").startswith(("IPython.", "ipykernel.")):
            return type(self)
        raise _unknown(self, "__class__", AttributeError)

    def __repr__(self) -> str:
        header, unsaved = header_of(self), unsaved_of(self)
        if unsaved is not None:
            where = _whereabouts(unsaved)
            return f"<{name_of(self)}: not saved, {unsaved.reason} at {unsaved.path}{'; ' + where if where else ''}>"
        if header is None:
            return f"<{name_of(self)}: not loaded>"
        return f"<{name_of(self)}: {header.type_name} not loaded: {header.preview}>"

    def __dir__(self) -> list[str]:
        known = class_of(self)
        header = header_of(self)
        sizes = [name for name in _SIZES if header is not None and getattr(header, name) is not None]
        return sorted({*sizes, *(dir(known) if known is not None else ())})

    def __len__(self) -> int:
        header = header_of(self)
        if header is not None and header.length is not None:
            return header.length
        raise _unknown(self, "len", TypeError)

    def __getattr__(self, attribute: str) -> Any:
        header = header_of(self)
        if header is not None and attribute in _SIZES and getattr(header, attribute) is not None:
            return _size(self, attribute)
        if attribute.startswith(("__", "_repr_", "_ipython_")) or _is_foreign(self, attribute):
            # Whoever asks for these only wants to know what the object can do.
            raise AttributeError(attribute)
        raise _unknown(self, attribute, AttributeError)

    def __setattr__(self, attribute: str, value: Any) -> None:
        raise _refusal(self, attribute)

    def __delattr__(self, attribute: str) -> None:
        raise _refusal(self, attribute)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise _refusal(self, "pickle")

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **_: Any) -> NoReturn:
        raise _refusal(self, str(function))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = [value for value in (*args, *(kwargs or {}).values()) if is_stub(value)]
        use = getattr(function, "__name__", str(function))
        raise _refusal(found[0] if found else Stub("a value", None, None, None), use)


def is_stub(value: Any) -> TypeGuard[Stub]:
    """Whether the variable or attribute that holds `value` holds a stand-in."""
    return issubclass(type(value), Stub)


def _kind_for(header: UnitHeader | None, unsaved: Unsaved | None) -> type[Stub]:
    if header is None:
        key = (Stub.__module__, "value (not saved)" if unsaved is not None else "value (not loaded)")
    else:
        key = (header.type_module, f"{header.type_name} (not loaded)")
    kind = _kinds.get(key)
    if kind is None:
        if len(_kinds) >= KINDS_MAX:
            return Stub
        kind = _kinds[key] = type(key[1], (Stub,), {"__slots__": (), "__module__": key[0], "__doc__": Stub.__doc__})
    return kind


def class_of(stub: Stub) -> type | None:
    """The class of the value, if it is one that a module here has under its name; loads nothing."""
    header = header_of(stub)
    module = sys.modules.get(header.type_module) if header is not None else None
    known = vars(module).get(header.type_name) if header is not None and module is not None else None
    return known if issubclass(type(known), type) else None


def _is_foreign(stub: Stub, attribute: str) -> bool:
    """Whether no value of that kind has the attribute: without a dict of its own an object has those of its class."""
    known = class_of(stub)
    if known is None or known.__dictoffset__ or hasattr(known, "__getattr__"):
        return False
    return not hasattr(known, attribute)


def _size(stub: Stub, attribute: str) -> Any:
    """Shape, dtype or device as the value itself would give it, as far as its library is here."""
    header = header_of(stub)
    value = getattr(header, attribute)
    library = header.type_module.partition(".")[0] if header is not None else ""
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    # One that another thread is importing lacks names still.
    if hasattr(torch, "Size") and library == "torch":
        if attribute == "dtype":
            return getattr(torch, value.removeprefix("torch."), value)
        return torch.Size(value) if attribute == "shape" else torch.device(value)
    if hasattr(numpy, "dtype") and attribute == "dtype":
        try:
            return numpy.dtype(value)
        except TypeError:
            if not _is_viewing.get():
                raise _refusal(stub, attribute) from None
    return value


def _unknown(stub: Stub, use: str, as_of_value: type[Exception]) -> Exception:
    refusal = _refusal(stub, use)
    return as_of_value(refusal.message) if _is_viewing.get() else refusal


def _tell_touch(stub: Stub) -> None:
    """Who needs memory that lives on a GPU needs a GPU: the recipe did not foresee it."""
    header = header_of(stub)
    on_gpu = header is not None and any(device != "cpu" for device, size in header.device_bytes.items() if size)
    if on_gpu and not _is_viewing.get():
        touch.tell(f"`{name_of(stub)}`, which lives on a GPU")


def _refusal(stub: Stub, use: str) -> PreconditionFailed:
    name, unsaved = name_of(stub), unsaved_of(stub)
    if unsaved is not None:
        where = _whereabouts(unsaved)
        return PreconditionFailed(
            "NOT_SAVED",
            f"`{name}` is not here: it could not be saved ({unsaved.reason} at `{unsaved.path}`: {unsaved.detail}). "
            + (f"{where[0].upper()}{where[1:]}. " if where else "")
            + "Run the cell that makes it again, or delete it.",
            name=name, path=unsaved.path, cause=unsaved.reason,
        )  # fmt: skip
    _tell_touch(stub)
    return PreconditionFailed(
        "NOT_RESTORED",
        f"`{name}` is saved but not loaded here, and {use!r} needs it: name `{name}` in the cell, then it is loaded.",
        name=name, use=use,
    )  # fmt: skip


def _refusing(method: str) -> Any:
    def refuse(self: Stub, *_: Any, **__: Any) -> NoReturn:
        raise _refusal(self, method)

    refuse.__name__ = method
    return refuse


# Operators look methods up on the type, so each must be there to give our text instead of Python's.
_METHODS: Final = (
    "__call__ __iter__ __next__ __getitem__ __setitem__ __delitem__ __contains__ __reversed__ __bool__ __hash__ __eq__ "
    "__ne__ __lt__ __le__ __gt__ __ge__ __int__ __float__ __complex__ __index__ __str__ __format__ __bytes__ __enter__ "
    "__exit__ __await__ __aiter__ __anext__ __array__ __neg__ __pos__ __abs__ __invert__ __round__ __copy__ "
    "__deepcopy__"
)
_OPERATORS: Final = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
for _method in _METHODS.split():
    setattr(Stub, _method, _refusing(_method))
for _operator in _OPERATORS.split():
    for _prefix in ("", "r", "i"):
        setattr(Stub, f"__{_prefix}{_operator}__", _refusing(f"__{_prefix}{_operator}__"))
Stub.__str__ = Stub.__repr__  # type: ignore[method-assign,assignment]


def name_of(stub: Stub) -> str:
    """The variable that it stands for."""
    name: str = object.__getattribute__(stub, "_looseleaf_name")
    return name


def unit_id_of(stub: Stub) -> UnitId | None:
    """The unit that holds the value; None if it was never saved."""
    unit_id: UnitId | None = object.__getattribute__(stub, "_looseleaf_unit_id")
    return unit_id


def header_of(stub: Stub) -> UnitHeader | None:
    """What is known of the value without loading it."""
    header: UnitHeader | None = object.__getattribute__(stub, "_looseleaf_header")
    return header


def unsaved_of(stub: Stub) -> Unsaved | None:
    """Why there is no saved value, if there is none."""
    unsaved: Unsaved | None = object.__getattribute__(stub, "_looseleaf_unsaved")
    return unsaved
