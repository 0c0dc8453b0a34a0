"""Parts of `make gpu-check` about the dirty tracker: right, complete, fast."""

from __future__ import annotations

import mmap
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from looseleaf.dirty_tracker import dirty_regions, region_fingerprints
from looseleaf.dirty_tracker.device_memory import span_of
from looseleaf.units import GIB, MIB, REGION_BYTES

SECRET = bytes(range(32))
CASES = 1000
WRITES = 10_000
ROUNDS = 7
# Small, so that thousands of saves take seconds.
WRITE_REGION_BYTES = 16 << 10


class HostTracker:
    """Stands for the device's tracker: the kernel's schedule, on the host."""

    def tables(self, spans: list[Any], last: list[bytes], region_bytes: int) -> list[tuple[bytes, list[int]]]:
        """As DeviceTracker.tables, of spans that keep their arrays."""
        import ctypes

        found = []
        for (address, size), known in zip(spans, last, strict=True):
            memory = (ctypes.c_char * size).from_address(address)
            table = region_fingerprints(memory, SECRET, region_bytes=region_bytes, schedule="cuda")
            found.append((table, dirty_regions(table, known)))
        return found


def tracker_for(device: str) -> Any:
    """Of the device, or its stand-in."""
    if device == "cpu":
        return HostTracker()
    from looseleaf.dirty_tracker import _cuda

    return _cuda.DeviceTracker(0, SECRET)


def fingerprints_agree(device: str) -> dict[str, Any]:
    """1,000 lengths and offsets, the edges of vectors, lanes, tiles and regions among them."""
    random = np.random.default_rng(1)
    content = torch.from_numpy(random.integers(0, 256, 3 * MIB, dtype=np.uint8)).to(device)
    on_host, base = content.cpu().numpy(), content.data_ptr()
    edges = [edge + by for edge in (16, 512, 8192, 16_384, 131_072, REGION_BYTES) for by in (-1, 0, 1)]
    lengths = [*edges, *(int(2**bits) for bits in random.uniform(0, 21, CASES - len(edges)))]
    tracker = tracker_for(device)
    for length in lengths:
        offset = int(random.integers(0, 64)) if random.random() < 0.7 else 16 * int(random.integers(0, 4))
        ((table, _),) = tracker.tables([(base + offset, length)], [b""], REGION_BYTES)
        expected = region_fingerprints(on_host[offset : offset + length], SECRET)
        assert table == expected, f"length {length}, offset {offset}"
    return {"cases": len(lengths)}


def writes_are_seen(device: str) -> dict[str, Any]:
    """Single elements by many ways; after each the tracker names the region, and nothing else."""
    torch.manual_seed(0)
    values = torch.zeros(1 << 18, device=device)
    ways = write_ways(values, device)
    tracker, random = tracker_for(device), np.random.default_rng(2)
    span = [(values.data_ptr(), values.nbytes)]
    ((last, _),) = tracker.tables(span, [b""], WRITE_REGION_BYTES)
    counts = dict.fromkeys(ways, 0)
    names = list(ways)
    for number in range(WRITES if device != "cpu" else WRITES // 100):
        name = names[number % len(names)]
        at = int(random.integers(0, values.numel()))
        ways[name](at, float(number + 1))
        ((last, dirty),) = tracker.tables(span, [last], WRITE_REGION_BYTES)
        assert dirty == [at * 4 // WRITE_REGION_BYTES], f"{name} at {at}: {dirty}"
        counts[name] += 1
    absent = {} if device == "cpu" or "cupy" in counts else {"cupy": "not installed"}
    return {**counts, **absent, **silent_updates(device, tracker)}


def write_ways(values: torch.Tensor, device: str) -> dict[str, Callable[[int, float], object]]:
    """Ways to set one element, some of which torch's version counters miss."""
    alias = torch.from_dlpack(values)
    ways: dict[str, Callable[[int, float], object]] = {
        "indexing": values.__setitem__,
        ".data": values.data.__setitem__,
        "DLPack": alias.__setitem__,
        "view": lambda at, value: values.view(-1, 64)[at // 64].__setitem__(at % 64, value),
    }
    if device != "cpu":
        try:
            import cupy
        except ImportError:
            return ways
        array = cupy.from_dlpack(values)

        def set_by_cupy(at: int, value: float) -> None:
            array[at] = value

        ways["cupy"] = set_by_cupy
    return ways


def silent_updates(device: str, tracker: Any) -> dict[str, Any]:
    """Fused optimizers and running statistics, which change tensors and leave their versions."""
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).to(device)
    seen = 0
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        optimizer = kind(layer.parameters(), lr=0.1, fused=True)
        tensors = [*layer.parameters(), layer[1].running_mean, layer[1].running_var]
        spans = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
        before = [table for table, _ in tracker.tables(spans, [b""] * len(spans), REGION_BYTES)]
        layer(torch.randn(32, 64, device=device)).square().mean().add(layer[0].weight.sum()).backward()
        optimizer.step()
        copies = tracker.tables(spans, before, REGION_BYTES)
        changed = [bool(dirty) for _, dirty in copies]
        assert changed[0] and changed[-1] and changed[-2], f"{kind.__name__}: {changed}"
        seen += sum(changed)
    return {"tensors of fused steps": seen}


def _median_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken[1:])


def _gb_per_s(size_bytes: int, taken_s: float) -> float:
    return round(size_bytes / taken_s / 1e9, 1)


def fingerprint_speed(device: str) -> dict[str, Any]:
    """GB/s of fingerprints beside a plain read and a copy on the device."""
    size = 4 * GIB
    state = torch.randint(0, 2**62, (size // 8,), device=device)
    other = torch.empty_like(state)
    tracker = tracker_for(device)
    span = [(state.data_ptr(), state.nbytes)]
    last = tracker.tables(span, [b""], REGION_BYTES)[0][0]
    ours = _median_s(lambda: tracker.tables(span, [last], REGION_BYTES))
    read, copy = _median_s(state.sum), _median_s(lambda: other.copy_(state))
    compared = _median_s(lambda: tracker.compare(span, [(other.data_ptr(), other.nbytes)], REGION_BYTES))
    return {
        "fingerprints GB/s": _gb_per_s(size, ours), "read GB/s": _gb_per_s(size, read),
        "device copy GB/s": _gb_per_s(size, copy), "exact compare GB/s": _gb_per_s(size, compared),
        "of a read": round(read / ours, 2), "of a copy": round(copy / ours, 2),
    }  # fmt: skip


def dirty_set_copy(device: str) -> dict[str, Any]:
    """1 % of 8 GiB in single regions, and a run of them, to places on the host; beside one copy to pinned memory."""
    state = torch.zeros(8 * GIB // 8, dtype=torch.int64, device=device)
    regions = range(0, state.nbytes // REGION_BYTES, 100)
    size = len(regions) * REGION_BYTES
    places = np.ones(size, dtype=np.uint8)
    tracker = tracker_for(device)
    base = span_of(state).address
    scattered = [
        (base + region * REGION_BYTES, places[k * REGION_BYTES :][:REGION_BYTES]) for k, region in enumerate(regions)
    ]
    together = [(base, places)]
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    on_device = state.view(torch.uint8)[:size]
    single = _median_s(lambda: pinned.copy_(on_device, non_blocking=True))
    found = {
        "scattered": _median_s(lambda: tracker.move_to_host(scattered)),
        "together": _median_s(lambda: tracker.move_to_host(together)),
    }
    return {
        "MiB": size // MIB, "one pinned copy GB/s": _gb_per_s(size, single),
        **{f"{name} GB/s": _gb_per_s(size, taken) for name, taken in found.items()},
    }  # fmt: skip


def pinning(device: str) -> dict[str, Any]:
    """Seconds a GiB to pin memory of small pages, of transparent and of reserved huge pages."""
    size, runtime = GIB, torch.cuda.cudart()
    torch.cuda.synchronize()
    found: dict[str, Any] = {}
    for name, flags, advice in (
        ("4 KiB pages", 0, getattr(mmap, "MADV_NOHUGEPAGE", None)), ("THP", 0, getattr(mmap, "MADV_HUGEPAGE", None)),
        ("hugetlb", 0x40000, None),
    ):  # fmt: skip
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
        except OSError as error:
            found[name] = f"not available ({error.strerror})"
            continue
        if advice is not None:
            memory.madvise(advice)
        array = np.frombuffer(memory, dtype=np.uint8)
        array[::4096] = 1
        began_s = time.perf_counter()
        code = int(runtime.cudaHostRegister(array.ctypes.data, size, 0))
        found[f"{name} s/GiB"] = round(time.perf_counter() - began_s, 3) if code == 0 else f"error {code}"
        if code == 0:
            assert int(runtime.cudaHostUnregister(array.ctypes.data)) == 0
        del array
        memory.close()
    return found
