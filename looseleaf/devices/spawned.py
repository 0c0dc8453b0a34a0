"""Processes that `multiprocessing` spawns see the devices that their parent sees (design §8).

A spawned child is a fresh interpreter; the first thing that it unpickles is what its parent tells it of itself. One
more entry there installs the same seam, before the child's own work is read. Loads no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.hook import PostImportHook
from looseleaf.devices.patches import PatchSet

_ENTRY = "looseleaf_devices"


class Seam:
    """Pickles as a call of `install` with these settings."""

    def __init__(self, settings: tuple[Any, ...]) -> None:
        self._settings = settings

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return (install_in_child, self._settings)


def install_in_child(role: Any, kind: Any, gpus: int, delays: bool, memory_bytes: int) -> None:
    """Runs in the child."""
    importlib.import_module("looseleaf.devices").install(role, kind, gpus, delays, memory_bytes)


def watch_spawns(settings: Callable[[], tuple[Any, ...]], patches: PatchSet) -> PostImportHook:
    """Tell children from now on; the hook, started, waits for `multiprocessing.spawn` if nobody has imported it yet."""

    def patch() -> None:
        spawn: Any = importlib.import_module("multiprocessing.spawn")
        original = spawn.get_preparation_data

        def get_preparation_data(name: str) -> dict[str, Any]:
            return {**original(name), _ENTRY: Seam(settings())}

        patches.set(spawn, "get_preparation_data", get_preparation_data)

    hook = PostImportHook("multiprocessing.spawn", patch)
    hook.start()
    return hook
