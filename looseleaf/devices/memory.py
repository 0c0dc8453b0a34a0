"""Memory figures of virtual devices: the bytes of tagged storages, counted as CUDA's caching allocator would (§8).

They are lower bounds: a gradient counts from when it is first read, workspaces never.
Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from looseleaf.devices.queries import index_from
from looseleaf.devices.virtual import DEVICE_NAME, Ledger, VirtualGpus
from looseleaf.units import format_bytes

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

    def stats(device: Any = None) -> OrderedDict[str, Any]:
        one = ledger(device)
        live, reserved = one.live_bytes(), one.reserved_bytes()
        figures = {
            "active_bytes": (live, one.peak_bytes),
            "allocated_bytes": (live, one.peak_bytes),
            "reserved_bytes": (reserved, one.peak_reserved_bytes),
            "allocation": (one.allocations - one.frees, one.allocations),
        }
        made: OrderedDict[str, Any] = OrderedDict()
        for name, (current, peak) in figures.items():
            made[f"{name}.all.current"], made[f"{name}.all.peak"] = current, peak
        made["allocation.all.allocated"], made["allocation.all.freed"] = one.allocations, one.frees
        made["num_alloc_retries"] = made["num_ooms"] = 0
        return made

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        one, index = ledger(device), index_from(gpus, device)
        rows = [("Allocated memory", one.live_bytes(), one.peak_bytes)]
        rows.append(("GPU reserved memory", one.reserved_bytes(), one.peak_reserved_bytes))
        lines = [f"| {DEVICE_NAME} memory summary, device ID {index} (lower bounds)"]
        lines.append("| Metric | Cur Usage | Peak Usage")
        lines += [f"| {name} | {format_bytes(now)} | {format_bytes(peak)}" for name, now, peak in rows]
        return "\n".join(lines)

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
        "memory_stats": stats,
        "memory_summary": summary,
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


def accelerator_memory_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.accelerator` function."""
    cuda = memory_answers(gpus)
    same = (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
        "reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache",
    )
    return {**{name: cuda[name] for name in same}, "get_memory_info": cuda["mem_get_info"]}


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
