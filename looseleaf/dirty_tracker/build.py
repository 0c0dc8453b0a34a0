"""What of the native code was built, and what of it works on this machine."""

from __future__ import annotations

import importlib
from typing import Any

from looseleaf.dirty_tracker import _core


def build_info() -> dict[str, Any]:
    """Plain values for `looseleaf doctor` and bug reports.

    In a build with CUDA it initialises the driver (no context is opened), so a process that forks workers must not ask.

    `version`; `built_with_cuda`; `cuda`, one of "not built", "failed to load (WHY)", "loaded, N devices" and
    "loaded, 0 devices (WHY)"; `cuda_device_count`; `simd`, the vector unit that hashing uses; `pagemap_scan` and
    `populate_read`, whether the kernel offers these calls to this process.
    """
    from looseleaf import __version__

    cuda, cuda_device_count = _cuda_state()
    return {
        "version": __version__,
        "built_with_cuda": _core.BUILT_WITH_CUDA,
        "cuda": cuda,
        "cuda_device_count": cuda_device_count,
        "simd": _core.simd_level(),
        "pagemap_scan": _core.pagemap_scan_available(),
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
