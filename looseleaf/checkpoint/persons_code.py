"""The border to code that is not ours and runs while objects are taken apart or made again: it may raise anything.

Whatever it raises costs its own variable and no other. Only a BreakOff, which a signal handler of ours raises, passes.
"""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Final

from looseleaf.errors import CapacityExceeded, LooseLeafError, PreconditionFailed
from looseleaf.units import format_bytes

DETAIL_CHARS_MAX: Final = 500


class BreakOff(BaseException):
    """The save was broken off from outside: nothing of it happened."""


def shown(error: BaseException) -> str:
    """Type and text of an error; also of one whose `__str__` raises. Printable and at most DETAIL_CHARS_MAX long."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BreakOff:
        raise
    except BaseException as second:
        text = f"{type(error).__name__}, whose text raises {type(second).__name__}"
    return text.encode("ascii", "backslashreplace").decode("ascii")[:DETAIL_CHARS_MAX]


def restore_error(error: BaseException, type_name: str) -> LooseLeafError:
    """What a person is told when an object of the type could not be made again."""
    if isinstance(error, LooseLeafError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return out_of_memory(f"a saved {type_name} could not be made again here")
    if isinstance(error, ModuleNotFoundError):
        return import_error(error, error.name or "", "")
    return PreconditionFailed("RESTORE_FAILED", f"a saved {type_name} could not be made again here: {shown(error)}")


def import_error(error: BaseException, module: str, name: str) -> LooseLeafError:
    """What a person is told when `name` of `module`, which a saved object needs, cannot be had in this process."""
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or module
        text = f"it needs the module `{missing}`, which is not installed here: install it where this cell runs"
        return PreconditionFailed("MODULE_MISSING", text, module=missing)
    if isinstance(error, AttributeError):
        text = f"it needs `{module}.{name}`, which is not there in the version that is installed here"
        return PreconditionFailed("DEFINITION_MISSING", text, module=module)
    text = f"it needs the module `{module}`, whose import raised {shown(error)}"
    return PreconditionFailed("IMPORT_FAILED", text, module=module)


def out_of_memory(what: str) -> CapacityExceeded:
    """The error for a step that this process had no memory for; nothing else was changed."""
    free_bytes = available_bytes()
    text = f"{what}: no more memory could be had ({format_bytes(free_bytes)} are left). Delete what is not needed"
    return CapacityExceeded("OUT_OF_MEMORY", text, available_bytes=free_bytes)


def available_bytes() -> int:
    """What this process may still allocate, as far as the host and its own limit tell."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(memory.partition("MemAvailable:")[2].split()[0]) * 1024)
        if soft != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            found.append(max(0, soft - pages * resource.getpagesize()))
    except (OSError, ValueError, IndexError, MemoryError):
        return min(found, default=0)
    return min(found)
