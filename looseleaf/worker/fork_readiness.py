"""What a zygote does once instead of each of its workers, and takes back before it imports more."""

from __future__ import annotations

import gc
import importlib
import sys

from looseleaf.checkpoint.module_code import BASELINE
from looseleaf.checkpoint.new_modules import NEW_MODULES
from looseleaf.worker.heap_holes import fill_holes

# How many there were when `forget_found_files` did its work, and the one that came last.
_modules_at_last: tuple[int, str] = (0, "")


def become_ready_to_fork() -> None:
    """After the last import. Workers find their devices installed and pay for none of the objects that are here.

    What a package does at its import must not depend on these devices: call `become_ready_to_import` before the next.
    """
    from looseleaf.worker.child import install_devices
    from looseleaf.worker.rehearsal import rehearse

    rehearse()
    BASELINE.begin()
    NEW_MODULES.mark()
    install_devices("worker")
    forget_found_files(anyway=True)
    gc.collect()
    fill_holes()
    gc.freeze()


def forget_found_files(*, anyway: bool = False) -> None:
    """Before a fork: what is installed since the last import here is found in the worker.

    That is for each folder that a package lies in, hundreds of them, so not in each worker (study §4.3): here it is
    done again only after another import, or `anyway`. A search that finds nothing is not seen, but also keeps what it
    saw of the folders: between this and a worker's first cell there must be none.
    """
    global _modules_at_last
    modules = len(sys.modules), next(reversed(sys.modules), "")
    if modules != _modules_at_last or anyway:
        importlib.invalidate_caches()
        _modules_at_last = modules


def become_ready_to_import() -> None:
    """In a process that was forked to import more: torch is as it was when it was imported."""
    from looseleaf.worker.child import install_devices

    install_devices("zygote")
