"""What a zygote imports before it serves, and what it may then say of itself."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint import import_filters
from looseleaf.errors import LooseLeafError, PreconditionFailed
from looseleaf.units import KIB
from looseleaf.worker.probe_checks import failure, unclean

# By its presence libraries tell a notebook from a terminal when they are imported; an environment may lack it.
NOTEBOOK_SIGNS: Final = ("ipykernel.zmqshell",)
# What a package, or every cell, loads at its first use: here once instead of in each worker.
LOADED_LATER: Final = {
    "": ("looseleaf.checkpoint.tracker", "pexpect", "IPython.core.pylabtools"),
    "matplotlib.pyplot": ("matplotlib.backends.backend_agg",),
    "numpy": ("numpy.random", "numpy.ma", "looseleaf.checkpoint.numpy_memory"),
    "pandas": ("looseleaf.checkpoint.pandas_objects",),
    "pyarrow": ("pyarrow.pandas_compat", "pyarrow.vendored.version", "looseleaf.checkpoint.arrow_memory"),
    "torch": ("torch.utils._device", "looseleaf.checkpoint.torch_memory", "looseleaf.checkpoint.torch_objects"),
}
ERROR_CHARS_MAX: Final = 300
# Of the names in a `READY`, which must fit one datagram with the rest.
MODULES_CHARS_MAX: Final = 40 * KIB

Progress = Callable[[str], None]


def import_head(
    names: Iterable[str], own_fds: Collection[int] | None = None, progress: Progress = lambda _name: None
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Imports each module. ({name, seconds} of those that worked, {name, error, verdict} of those that did not.)

    `progress` is told each name before its import. Raises PreconditionFailed as `check_clean`, naming the module: an
    import cannot be undone.
    """
    imported: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    pid = os.getpid()
    for name in names:
        progress(name)
        began_s = time.monotonic()
        try:
            with import_filters.noted():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            verdict, text = failure(error)
            failed.append({"name": name, "error": text[:ERROR_CHARS_MAX], "verdict": verdict})
            continue
        finally:
            if os.getpid() != pid:
                # A process that the import forked, and that went on here: there must be no second zygote.
                os._exit(0)
        imported.append({"name": name, "seconds": round(time.monotonic() - began_s, 4)})
        check_clean(name, own_fds)
    return imported, failed


def load_later(own_fds: Collection[int] | None = None) -> list[dict[str, str]]:
    """Imports what `LOADED_LATER` has for modules that are here; {name, error, verdict} of those that failed."""
    wanted = [names for trigger, names in LOADED_LATER.items() if not trigger or trigger in sys.modules]
    return [failure for names in wanted for failure in import_head(names, own_fds)[1]]


def check_clean(imported: str, own_fds: Collection[int] | None = None, *, doing: str = "importing") -> None:
    """Raises PreconditionFailed `FORBIDDEN_MODULE`, `THREADS_RUNNING` or `ZYGOTE_UNCLEAN` if this process must not be
    forked any more; its fields are the `verdict` and the module's `name`.

    `doing`: what was done with `imported`, for its text. `own_fds`: descriptors above 2 that may be open; None: any.
    The base is what was configured and is not probed; what it opens, its workers close. Threads of native libraries are
    not looked at: whether one comes back after a fork only a probe's fork shows.
    """
    found = unclean([int(name) for name in os.listdir("/proc/self/fd")] if own_fds is None else own_fds)
    if found is None:
        return
    verdict, detail = found
    text = f"{doing} {imported} {detail}"
    if verdict == "grpc-like":
        raise PreconditionFailed("FORBIDDEN_MODULE", text, name=imported, verdict=verdict)
    if verdict == "threads":
        raise PreconditionFailed("THREADS_RUNNING", text, name=imported, verdict=verdict)
    raise PreconditionFailed("ZYGOTE_UNCLEAN", text, name=imported, verdict=verdict)


def check_rehearsed(imports: Sequence[str], own_fds: Collection[int] | None = None) -> None:
    """As `check_clean`, after `become_ready_to_fork`, which uses the libraries for the first time.

    The last of `imports` is named: whichever it was that spoiled the process, it is left out in the end.
    """
    check_clean(imports[-1] if imports else "nothing", own_fds, doing="the rehearsal after importing")


def refusal(error: LooseLeafError) -> dict[str, Any]:
    """What a process says instead of `READY` that may not serve."""
    verdict, culprit = error.fields.get("verdict", ""), error.fields.get("name", "")
    return {"t": "ERR", "id": 0, "errno": 0, "text": str(error), "verdict": verdict, "culprit": culprit}


def known_modules() -> list[str]:
    """Names that a recipe may find here, those with few dots first: as many as fit a datagram."""
    found = []
    for name in sys.modules:
        parts = name.split(".")
        own = parts[0] in sys.stdlib_module_names or parts[0] == "looseleaf"
        if not own and not any(part.startswith("_") for part in parts):
            found.append((len(parts), name))
    names: list[str] = []
    chars = 0
    for _, name in sorted(found):
        chars += len(name) + 4
        if chars > MODULES_CHARS_MAX:
            break
        names.append(name)
    return names


def memory_bytes() -> dict[str, int]:
    """`pss_bytes` and `private_bytes` of this process; about 16 ms for a large one, so never while somebody waits."""
    wanted = {"Pss:": "pss_bytes", "Private_Dirty:": "private_bytes"}
    found = dict.fromkeys(wanted.values(), 0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, *rest = line.split()
        if name in wanted:
            found[wanted[name]] = int(rest[0]) * KIB
    return found
