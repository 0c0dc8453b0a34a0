"""Whether modules are of installed distributions, whose files only an installer changes (design §4, §5)."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from typing import Final

_INSTALLED_MARK: Final = ".dist-info"


def foreign_module(names: Iterable[str], folders: tuple[str, ...]) -> tuple[str, str] | None:
    """(verdict, detail) of a module whose file is in none of the `installed_folders`; None if there is none.

    Such are editable installs and files beside a notebook: no fingerprint of the environment changes with them, and
    they may be one person's. Modules without a file, and our own, are not looked at.
    """
    for name in sorted(names):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if not isinstance(spec, ModuleSpec) or not spec.has_location or name.partition(".")[0] == "looseleaf":
            continue
        origin = str(spec.origin)
        if not origin.startswith(folders) and not os.path.realpath(origin).startswith(folders):
            return "foreign", f"loads {name} from {origin}, which belongs to no installed distribution"
    return None


def installed_folders() -> tuple[str, ...]:
    """Where installers and Python itself put modules, each with a closing slash.

    Of the search path only folders with distributions in them count; what a `.pth` file put there is an editable
    install's more often than not.
    """
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")} | {*site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found |= {os.path.abspath(folder) for folder in named if folder and _holds_distributions(folder)}
    return tuple(f"{folder}{os.sep}" for entry in found for folder in {entry, os.path.realpath(entry)})


def _holds_distributions(folder: str) -> bool:
    try:
        return any(name.endswith(_INSTALLED_MARK) for name in os.listdir(folder))
    except OSError:
        return False
