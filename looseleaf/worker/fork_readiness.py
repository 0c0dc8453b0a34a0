"""What a zygote does once instead of each of its workers, and takes back before it imports more."""

from __future__ import annotations

import gc

from looseleaf.checkpoint.module_code import BASELINE
from looseleaf.checkpoint.new_modules import NEW_MODULES


def become_ready_to_fork() -> None:
    """After the last import. Workers find their devices installed and pay for none of the objects that are here.

    What a package does at its import must not depend on these devices: call `become_ready_to_import` before the next.
    """
    from looseleaf.worker.child import install_devices

    BASELINE.begin()
    NEW_MODULES.mark()
    install_devices("worker")
    gc.collect()
    gc.freeze()


def become_ready_to_import() -> None:
    """In a process that was forked to import more: torch is as it was when it was imported."""
    from looseleaf.worker.child import install_devices

    install_devices("zygote")
