"""What a cluster must not leave behind: processes, sockets, shared memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import psutil

from looseleaf.devices.smi_shim import SMI_FOLDER, withdraw_smi
from looseleaf.local import record as records
from looseleaf.logs import get_logger
from looseleaf.rpc.address import is_listening

# What a killed process may take to be gone; one in the middle of a write to the disk takes longest.
KILLED_TIMEOUT_S: Final = 5.0

log = get_logger()


def sweep(cluster_id: str, run_dir: Path, grace_s: float = 2.0) -> list[str]:
    """Ends what is left of the cluster's processes after `grace_s`, removes its sockets and shared memory.

    Says what it found.
    """
    found: list[str] = []
    processes = [process for process in records.cluster_processes(cluster_id) if process.pid != os.getpid()]
    _gone, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(f"process {process.pid} ({' '.join(process.cmdline()[:4])})")
            process.kill()
    psutil.wait_procs(alive, timeout=KILLED_TIMEOUT_S)
    for path in records.leftover_sockets(run_dir):
        if not is_listening(path):
            found.append(f"socket {path}")
            path.unlink(missing_ok=True)
    withdraw_smi(run_dir / SMI_FOLDER)
    for path in records.leftover_memory(cluster_id):
        found.append(f"shared memory {path}")
        path.unlink(missing_ok=True)
    for item in found:
        log.warning("leftover_removed", what=item)
    return found
