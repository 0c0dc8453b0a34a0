"""The device seam: real CUDA, virtual GPUs, or none (design §8). Importing it patches nothing and loads no torch.

`install` once per process, or again to change role; `uninstall` leaves torch exactly as it was. torch is patched when
it is imported, whenever that is; until then there is nothing to patch and no device to use.

Roles. `zygote`: warms what a forked worker will need, patches nothing, starts nothing, touches no device; played while
a zygote or a probe imports. When its imports are done a zygote plays `worker`, so that those it forks need not begin
to; what it forks to import more plays `zygote` again first. `worker` and `reference` (a stock kernel, for comparison):
devices work. `kernel`: questions are answered, a first use of a device raises `PreconditionFailed("CUDA_IN_CPU_CELL")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from looseleaf.devices.backend import DeviceBackend, DeviceState, Kind, NoneBackend, Role
from looseleaf.devices.description import VIRTUAL_MEMORY_BYTES, GpuDescription
from looseleaf.devices.frames import hide_device_frames, hide_in_shell
from looseleaf.devices.installation import Installation

__all__ = [
    "VIRTUAL_MEMORY_BYTES", "DeviceBackend", "DeviceState", "Kind", "NoneBackend", "Role", "active",
    "apply_device_state", "attach", "backend", "device_state", "ensure_thread", "hide_device_frames", "hide_in_shell",
    "install", "raw", "reset_touch", "resident_bytes", "touched", "uninstall",
]

_installed: Installation | None = None


def install(
    role: Role,
    kind: Kind,
    gpus: int,
    delays: bool = False,
    memory_bytes: int = VIRTUAL_MEMORY_BYTES,
    description: GpuDescription | None = None,
    session_bytes: Callable[[int], int] | None = None,
) -> None:
    """Play `role` from now on, with `gpus` devices of `kind` to be seen (a worker's number may change at `attach`).

    Call it in the thread that runs cells. `delays`: virtual devices take the time that real ones would to attach and
    copy. `memory_bytes`: of each virtual device. `description`: of the real GPUs for which a kernel answers;
    `session_bytes(index)`: what the session keeps on one between cells, so that a kernel can tell what is free there.
    Replaces an earlier installation. Raises InvalidArgument.
    """
    global _installed
    uninstall()
    made = Installation(role, kind, gpus, delays, memory_bytes, description, session_bytes)
    made.start()
    _installed = made


def uninstall() -> None:
    """torch as it was. Storages forget their devices."""
    global _installed
    if _installed is not None:
        _installed.stop()
        _installed = None


def active() -> bool:
    """Whether `install` was called, in whatever role."""
    return _installed is not None


def backend() -> DeviceBackend:
    """The seam. Without `install`, or before torch is imported in a role without devices: `NoneBackend`."""
    return NoneBackend() if _installed is None else _installed.backend()


def ensure_thread() -> None:
    """Make sure that this thread sees virtual devices; the worker calls it before each cell. Cheap.

    New threads see them by themselves; one that was running when torch was imported does not.
    """
    if _installed is not None:
        _installed.ensure_thread()


def attach(gpus: Sequence[int], delays: bool = False) -> None:
    """See DeviceBackend.attach. Before torch is imported: as many devices as `gpus` are there once it is.

    Raises Unsupported `NO_DEVICE` where no devices are installed.
    """
    (_installed if _installed is not None else NoneBackend()).attach(gpus, delays)


def touched() -> float | None:
    """See DeviceBackend.touched."""
    return backend().touched()


def reset_touch() -> None:
    """See DeviceBackend.reset_touch."""
    backend().reset_touch()


def resident_bytes() -> dict[str, int]:
    """See DeviceBackend.resident_bytes."""
    return backend().resident_bytes()


def raw() -> AbstractContextManager[None]:
    """See DeviceBackend.raw; also for the rest of a block in which torch is imported."""
    return NoneBackend().raw() if _installed is None else _installed.raw()


def device_state() -> DeviceState:
    """See DeviceBackend.device_state; also what was applied before torch was imported."""
    return DeviceState() if _installed is None else _installed.device_state()


def apply_device_state(state: DeviceState) -> None:
    """See DeviceBackend.apply_device_state; kept until torch is imported."""
    if _installed is not None:
        _installed.apply_device_state(state)
