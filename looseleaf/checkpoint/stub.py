"""Stand-ins for values that live only in the store, or in another process: looking at one loads nothing (design §3)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from looseleaf.errors import PreconditionFailed

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import UnitHeader, Unsaved
    from looseleaf.ids import UnitId

_SLOTS: Final = ("_looseleaf_name", "_looseleaf_unit_id", "_looseleaf_header", "_looseleaf_unsaved")


class Stub:
    """What a variable holds until its value is needed.

    `repr`, `dir`, `shape`, `dtype`, `device` and, of sized values, `len` answer from the saved header. Any other use
    raises PreconditionFailed `NOT_RESTORED` (its value is in the store) or `NOT_SAVED` (it never got there), with the
    variable's name.
    """

    __slots__ = _SLOTS

    def __init__(self, name: str, unit_id: UnitId | None, header: UnitHeader | None, unsaved: Unsaved | None) -> None:
        object.__setattr__(self, "_looseleaf_name", name)
        object.__setattr__(self, "_looseleaf_unit_id", unit_id)
        object.__setattr__(self, "_looseleaf_header", header)
        object.__setattr__(self, "_looseleaf_unsaved", unsaved)

    def __repr__(self) -> str:
        header, unsaved = header_of(self), unsaved_of(self)
        if unsaved is not None:
            return f"<{name_of(self)}: not saved, {unsaved.reason} at {unsaved.path}>"
        if header is None:
            return f"<{name_of(self)}: not loaded>"
        return f"<{name_of(self)}: {header.type_name} not loaded: {header.preview}>"

    def __dir__(self) -> list[str]:
        header = header_of(self)
        module = sys.modules.get(header.type_module) if header is not None else None
        known = getattr(module, header.type_name, None) if header is not None and module is not None else None
        return sorted({"shape", "dtype", "device", *(dir(known) if isinstance(known, type) else ())})

    def __len__(self) -> int:
        header = header_of(self)
        if header is not None and header.length is not None:
            return header.length
        raise _refusal(self, "len")

    def __getattr__(self, attribute: str) -> Any:
        header = header_of(self)
        if header is not None and attribute in ("shape", "dtype", "device"):
            value = getattr(header, attribute)
            if value is not None:
                return value
        if attribute.startswith(("__", "_repr_", "_ipython_")):
            # Whoever asks for these only wants to know what the object can do.
            raise AttributeError(attribute)
        raise _refusal(self, attribute)

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
        found = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Stub)]
        use = getattr(function, "__name__", str(function))
        raise _refusal(found[0] if found else cls("a value", None, None, None), use)


def _refusal(stub: Stub, use: str) -> PreconditionFailed:
    name, unsaved = name_of(stub), unsaved_of(stub)
    if unsaved is not None:
        return PreconditionFailed(
            "NOT_SAVED",
            f"`{name}` is not here: it could not be saved ({unsaved.reason} at `{unsaved.path}`: {unsaved.detail}). "
            "Run the cell that makes it again, or delete it.",
            name=name, path=unsaved.path, cause=unsaved.reason,
        )  # fmt: skip
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
