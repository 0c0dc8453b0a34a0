"""Compute threads of the libraries in this process: one in a zygote, the kernel's count in a worker.

Environment variables are read once, at import; afterwards only the libraries' own functions change anything. Results
must not depend on where a cell ran, so a worker uses the count that the kernel's process has.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

# What a zygote's environment must say before its libraries are loaded.
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_RTLD_NOLOAD: Final = 0x4
# Part of a library's file name → the functions that set its count; the first that exists is called.
_SETTERS: Final = {
    "openblas": tuple(
        f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "", "_64")
    ),
    "libgomp": ("omp_set_num_threads",),
    "libiomp": ("omp_set_num_threads",),
    "libomp": ("omp_set_num_threads",),
    "libmkl_rt": ("MKL_Set_Num_Threads",),
    "libblis": ("bli_thread_set_num_threads",),
}


# Of these, the ones that start their threads when they are told a count, which then keep a CPU busy for tens of
# milliseconds while they wait for work.
_BUSY: Final = ("openblas",)


class ComputeThreads:
    """The count of this process's libraries, of which `libraries` are paths. Main thread only."""

    def __init__(self, libraries: list[str]) -> None:
        self._libraries = libraries
        # What those that would start threads at once are still to be told; 0: nothing.
        self._due = 0

    @property
    def settled(self) -> bool:
        """All libraries have the count."""
        return self._due == 0

    def begin(self, count: int) -> None:
        """From now on torch and others compute with so many, those that would start threads at once from `settle`.

        A restore may run before that, and before a cell says the kernel's count: what a package computes while its
        objects are unpickled may differ in its last bits. Cells and their callbacks come after it.
        """
        set_thread_count(count, [path for path in self._libraries if not _is_busy(path)])
        self._due = count

    def settle(self) -> None:
        """While nobody waits, or before a cell. Does nothing if it is done."""
        due, self._due = self._due, 0
        if due:
            set_library_counts(due, [path for path in self._libraries if _is_busy(path)])

    def set(self, count: int) -> None:
        """From now on all compute with so many."""
        self._due = 0
        set_thread_count(count, self._libraries)


def _is_busy(path: str) -> bool:
    return any(part in Path(path).name for part in _BUSY)


def missing_thread_variables() -> list[str]:
    """Names in `THREAD_VARIABLES` that are not "1" in this process's environment."""
    return [name for name in THREAD_VARIABLES if os.environ.get(name) != "1"]


def loaded_thread_libraries() -> list[str]:
    """Paths of the mapped libraries whose count can be set. Ask in the zygote: it reads all of the memory map."""
    paths = {line.rsplit(" ", 1)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    return sorted(path for path in paths if any(part in Path(path).name for part in _SETTERS))


def set_thread_count(count: int, libraries: list[str]) -> None:
    """Makes torch, numexpr and each of `libraries` that is loaded compute with `count` threads from now on."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    numexpr = sys.modules.get("numexpr")
    if numexpr is not None and hasattr(numexpr, "set_num_threads"):
        numexpr.set_num_threads(min(count, int(getattr(numexpr, "MAX_THREADS", count))))
    set_library_counts(count, libraries)


def set_library_counts(count: int, libraries: list[str]) -> None:
    """The same for each of `libraries` that is loaded."""
    for path in libraries:
        try:
            library = ctypes.CDLL(path, mode=_RTLD_NOLOAD)
        except OSError:
            continue  # not loaded in this process
        names = next(names for part, names in _SETTERS.items() if part in Path(path).name)
        for name in names:
            function = getattr(library, name, None)
            if function is not None:
                function.restype = None
                function(ctypes.c_int(count))
                break


def thread_count_here() -> int:
    """What cells of this process compute with: torch's count once it is loaded, else what it will be."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else default_thread_count()


def default_thread_count() -> int:
    """What a fresh process would use here: the CPUs that it may run on."""
    return len(os.sched_getaffinity(0))
