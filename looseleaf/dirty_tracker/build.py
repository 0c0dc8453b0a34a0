"""What of the native code was built, and what of it works on this machine."""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.dirty_tracker import _core
from looseleaf.dirty_tracker.written import pagemap_support


def build_info() -> dict[str, Any]:
    """Plain values for `looseleaf doctor` and bug reports.

    In a build with CUDA it initialises the driver (no context is opened), so a process that forks workers must not ask.

    `version`; `built_with_cuda`; `cuda`, one of "not built", "failed to load (WHY)", "loaded, N devices" and
    "loaded, 0 devices (WHY)"; `cuda_device_count`; `simd`, the vector unit that hashing uses; `written_pages`, how the
    written pages of restored memory are found: "scan" (the PAGEMAP_SCAN ioctl), "read" (the pagemap file) or
    "not found (WHY)"; `populate_read`, whether the kernel offers this call to this process.
    """
    from looseleaf import __version__

    cuda, cuda_device_count = _cuda_state()
    method, why_none = pagemap_support()
    return {
        "version": __version__,
        "built_with_cuda": _core.BUILT_WITH_CUDA,
        "cuda": cuda,
        "cuda_device_count": cuda_device_count,
        "simd": _core.simd_level(),
        "written_pages": method or f"not found ({why_none})",
        "populate_read": _core.populate_read_available(),
    }


def _cuda_state() -> tuple[str, int]:
    if not _core.BUILT_WITH_CUDA:
        return "not built", 0
    try:
        module = importlib.import_module("looseleaf.dirty_tracker._cuda")
    except ImportError as error:
        return f"failed to load ({error})", 0
    count, why_none = module.device_state()
    return (f"loaded, {count} devices" if count else f"loaded, 0 devices ({why_none})"), count
