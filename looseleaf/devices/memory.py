"""Memory figures of virtual devices: the bytes of tagged storages, counted as CUDA's caching allocator would (§8).

They are lower bounds: a gradient counts from when it is first read, workspaces never.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.queries import index_from
from looseleaf.devices.virtual import SEGMENT_BYTES, Ledger, VirtualGpus

torch: Any = importlib.import_module("torch")


def memory_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.cuda` function; each uses the device, as on CUDA."""

    def ledger(device: Any = None) -> Ledger:
        gpus.touch()
        return gpus.ledgers[index_from(gpus, device)]

    def empty_cache() -> None:
        gpus.touch()
        for one in gpus.ledgers:
            one.empty_cache()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        one = ledger(device)
        return max(one.capacity_bytes - one.reserved_bytes(), 0), one.capacity_bytes

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        one = ledger(device)
        one.limit_bytes = int(one.capacity_bytes * fraction)

    def stats(device: Any = None) -> dict[str, Any]:
        return _nested_stats(ledger(device))

    def fraction(device: Any = None) -> float:
        one = ledger(device)
        return one.limit_bytes / one.capacity_bytes

    answers: dict[str, Callable[..., Any]] = {
        "memory_allocated": lambda device=None: ledger(device).live_bytes(),
        "max_memory_allocated": lambda device=None: ledger(device).peak_bytes,
        "memory_reserved": lambda device=None: ledger(device).reserved_bytes(),
        "max_memory_reserved": lambda device=None: ledger(device).peak_reserved_bytes,
        "reset_peak_memory_stats": lambda device=None: ledger(device).reset_peaks(),
        "reset_accumulated_memory_stats": lambda device=None: ledger(device).reset_peaks(),
        "mem_get_info": mem_get_info,
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": fraction,
        "memory_stats_as_nested_dict": stats,
        "host_memory_stats_as_nested_dict": dict,
        "memory_snapshot": lambda *args, **kwargs: [],
        "list_gpu_processes": lambda device=None: f"GPU:{index_from(gpus, device)}\nno processes are running",
        "ipc_collect": gpus.touch,
        "device_memory_used": lambda device=None: ledger(device).reserved_bytes(),
    }
    answers["memory_cached"] = answers["memory_reserved"]
    answers["max_memory_cached"] = answers["max_memory_reserved"]
    answers["reset_max_memory_allocated"] = answers["reset_peak_memory_stats"]
    answers["reset_max_memory_cached"] = answers["reset_peak_memory_stats"]
    return answers


def _nested_stats(one: Ledger) -> dict[str, Any]:
    """As the allocator of torch's CUDA build tells them, so that torch's own code makes figures and tables of them.

    Pools and splits are not told apart: all is in "all" and in the pool of large blocks.
    """
    live, reserved = one.live_bytes(), one.reserved_bytes()

    def figure(current: int, peak: int, allocated: int) -> dict[str, dict[str, int]]:
        known = {"current": current, "peak": peak, "allocated": allocated, "freed": allocated - current}
        return {"all": known, "large_pool": known, "small_pool": dict.fromkeys(known, 0)}

    held, none = figure(live, one.peak_bytes, one.allocated_bytes), figure(0, 0, 0)
    blocks = figure(one.allocations - one.frees, one.peak_allocations, one.allocations)
    kept = figure(reserved, one.peak_reserved_bytes, max(reserved, one.peak_reserved_bytes))
    segments = figure(reserved // SEGMENT_BYTES, one.peak_reserved_bytes // SEGMENT_BYTES, reserved // SEGMENT_BYTES)
    return {
        "allocation": blocks, "active": blocks, "allocated_bytes": held, "active_bytes": held, "requested_bytes": held,
        "reserved_bytes": kept, "segment": segments, "inactive_split": none, "inactive_split_bytes": none,
        "oversize_allocations": none["all"], "oversize_segments": none["all"], "max_split_size": -1,
        "num_alloc_retries": 0, "num_ooms": one.refusals, "num_sync_all_streams": 0, "num_device_alloc": 0,
        "num_device_free": 0,
    }


def accelerator_memory_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.accelerator` function."""
    cuda = memory_answers(gpus)
    same = (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache",
    )
    stats = {"memory_stats": lambda device=None: torch.cuda.memory_stats(device)}
    return {**{name: cuda[name] for name in same}, **stats, "get_memory_info": cuda["mem_get_info"]}


# Other `torch.cuda` functions that do work on a device; a virtual one has nothing to do or to measure.
WORK: dict[str, Any] = {
    "init": None, "_lazy_init": None, "synchronize": None, "utilization": 0, "temperature": 0, "power_draw": 0,
    "clock_rate": 0, "memory_usage": 0,
}


def work_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.cuda` function."""

    def answer(value: Any) -> Callable[..., Any]:
        def work(*args: Any, **kwargs: Any) -> Any:
            gpus.touch()
            return value

        return work

    return {name: answer(value) for name, value in WORK.items()}
