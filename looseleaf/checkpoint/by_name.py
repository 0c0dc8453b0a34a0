"""What is not part of a session's state because it is found again by its name: modules, and what they define."""

from __future__ import annotations

import collections
import importlib
import site
import sys
import sysconfig
import types
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint.looked import Looked

_HEAP_TYPE_FLAG: Final = 1 << 9
# The namespace of the user's cells; what is defined there is state.
SESSION_MODULE: Final = "__main__"
TABLE_MODULES: Final = ("torch.nn.modules.module", "torch.optim.optimizer")
_PUBLIC_MODULES_MAX: Final = 1024


def is_importable(value: Any) -> bool:
    """True if the class or function `value` is what its module and qualified name lead to, outside the session."""
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE_FLAG:
        return True
    return qualified_name(value) is not None


def qualified_name(value: Any) -> tuple[str, str] | None:
    """(module, qualified name) that lead back to the very object `value`, or None."""
    module_name = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if type(module_name) is not str or type(name) is not str or module_name == SESSION_MODULE:
        return None
    if type(value) is types.FunctionType and value.__globals__.get("__name__") == SESSION_MODULE:
        # One that a cell has put in the place of what it wraps.
        return None
    found: Any = sys.modules.get(module_name) or _public_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module_name, name) if found is value else None


@lru_cache(maxsize=_PUBLIC_MODULES_MAX)
def _public_module(name: str) -> types.ModuleType | None:
    """A module of an imported library that nobody has imported yet, although classes say that they are of it."""
    package, dot, _ = name.partition(".")
    if not dot or package not in sys.modules or not is_library_module(package):
        return None
    try:
        return importlib.import_module(name)
    except Exception:  # no such module, or one that cannot be imported here: then the name leads nowhere
        return None


def is_session_class(cls: type) -> bool:
    """True for a class that must be saved by value: defined in a cell, or inside a function of any module."""
    return not is_importable(cls)


def is_importable_module(module: types.ModuleType) -> bool:
    """True if an import brings the module back; False for one made by hand."""
    name = getattr(module, "__name__", None)
    return type(name) is str and sys.modules.get(name) is module


def is_made_module(module: Any) -> bool:
    """True for one that a cell has put among the imported modules: no import brings it back elsewhere."""
    package = sys.modules.get(module.__name__.partition(".")[0])
    if type(package) is not types.ModuleType or package.__name__ == SESSION_MODULE:
        return False
    return vars(package).get("__spec__") is None and vars(package).get("__file__") is None


def module_dicts() -> Mapping[int, str]:
    """id of the namespace dict of every imported module, except the session's, as "dict:M"."""

    def look() -> dict[int, str]:
        return {
            id(module.__dict__): f"dict:{name}"
            for name, module in list(sys.modules.items())
            if name != SESSION_MODULE and isinstance(module, types.ModuleType)
        }

    return _MODULE_DICTS.of(sys.modules, look)


_MODULE_DICTS: Final[Looked[dict[int, str]]] = Looked()


def library_tables() -> dict[int, str]:
    """id of each table in which torch keeps what a person registers for the whole process, as "attr:M:A"."""
    found = {}
    for name in TABLE_MODULES:
        module = sys.modules.get(name)
        for attribute, value in [] if module is None else list(vars(module).items()):
            if attribute.startswith("_global_") and type(value) is collections.OrderedDict:
                found[id(value)] = f"attr:{name}:{attribute}"
    return found


def module_instances(cls: type) -> dict[int, str]:
    """id of each instance of `cls` that is an attribute of the module that defines `cls`, with its name.

    These are singletons such as `dataclasses.MISSING`, `os.environ` or `logging.root`: a copy of one would be wrong.
    """
    module = sys.modules.get(cls.__module__) if type(cls.__module__) is str else None
    if not isinstance(module, types.ModuleType) or cls.__module__ == SESSION_MODULE:
        return {}
    return {id(value): name for name, value in list(vars(module).items()) if type(value) is cls}


def is_library_module(name: str) -> bool:
    """True for a module of the standard library or of an installed package, False for a file of the user's own."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if type(file) is not str:
        return True
    return file.startswith(_library_prefixes())


@lru_cache(maxsize=1)
def _library_prefixes() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths}
    found.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    return tuple({*found, *(str(Path(path).resolve()) for path in found)})
