"""Installed packages that a cell imported itself: had its recipe named them, they would have been there before Run."""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from looseleaf.checkpoint.new_modules import NEW_MODULES

_SITE_FOLDERS: Final = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class LateImports:
    """Made before a cell runs; modules of Python and of the person's own files do not count."""

    def __init__(self) -> None:
        self._before = frozenset(NEW_MODULES.names())

    def count(self) -> int:
        """How many packages came since."""
        came = (name for name in NEW_MODULES.names() if name not in self._before)
        return sum("." not in name and _is_installed(name) for name in came)


def _is_installed(name: str) -> bool:
    module = sys.modules.get(name)
    if not issubclass(type(module), ModuleType):
        return False
    # Not by getattr: a lazy module would load itself on it, and a person's own class may do anything.
    spec = object.__getattribute__(module, "__dict__").get("__spec__")
    origin = spec.origin if isinstance(spec, ModuleSpec) else None
    return isinstance(origin, str) and origin.startswith(_SITE_FOLDERS)
