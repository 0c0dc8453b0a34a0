"""The pool's GPUs as the notebook's own process answers for them (design §4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from looseleaf import devices
from looseleaf.devices.description import described
from looseleaf.devices.smi_shim import SMI_FOLDER, offer_smi
from looseleaf.kernel.link import Welcome


class PoolDevices:
    """`gpus`: how many the pool has; `memory_bytes`: of each, 0 if not known. Both as of the last daemon."""

    def __init__(self) -> None:
        self.gpus = 0
        self.memory_bytes = 0
        self._installed: tuple[object, ...] = ()

    @property
    def has_any(self) -> bool:
        """Whether the pool has GPUs, real or virtual, as far as anybody has said."""
        return bool(self._installed) and self._installed[0] != "none"

    def install(self, welcome: Welcome, run_dir: Path, session_bytes: Callable[[int], int]) -> None:
        """Answers for the daemon's pool from now on. `session_bytes(index)`: of the session, on its GPU `index`."""
        self.gpus = welcome.gpus if welcome.device != "none" else 0
        self.memory_bytes = welcome.gpu_memory_bytes
        wanted = (welcome.device, welcome.gpus, welcome.gpu_memory_bytes, welcome.gpu)
        if wanted == self._installed:
            return
        memory_bytes = welcome.gpu_memory_bytes or devices.VIRTUAL_MEMORY_BYTES
        devices.install(
            "kernel", welcome.device, welcome.gpus, memory_bytes=memory_bytes, description=welcome.gpu,
            session_bytes=session_bytes,
        )  # fmt: skip
        gpu = described(welcome.device, memory_bytes, welcome.gpu)
        # Before the tracker notes what the environment was: it is none of the session's changes.
        offer_smi(os.environ, run_dir / SMI_FOLDER, welcome.device, welcome.gpus, gpu)
        self._installed = wanted
