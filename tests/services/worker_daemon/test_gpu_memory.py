from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest
from daemon_fakes import until, within
from prometheus_client import CollectorRegistry

from looseleaf.ids import WorkerId
from looseleaf.services.worker_daemon import gpu_memory
from looseleaf.services.worker_daemon.core.worker_life import WorkerFacts
from looseleaf.services.worker_daemon.gpu_memory import GpuMemory, NvmlError, NvmlMemory, virtual_bytes
from looseleaf.services.worker_daemon.metrics import DaemonMetrics
from looseleaf.units import GIB

SOURCE = Path(__file__).resolve().parents[2] / "fixtures" / "stub_nvml.c"


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a driver's library with two GPUs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make NVML's stub")
    path = str(tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


def worker(gpus: tuple[int, ...], resident_bytes: int) -> WorkerFacts:
    return WorkerFacts(WorkerId("w"), 1, gpus=gpus, resident_bytes=resident_bytes)


def test_nvml_tells_the_memory_in_use_of_each_gpu(nvml: str) -> None:
    memory = NvmlMemory(nvml)
    assert memory.used_bytes(2) == [5 * GIB, 7 * GIB]
    with pytest.raises(NvmlError, match="nvmlDeviceGetHandleByIndex_v2 gave 2"):
        memory.used_bytes(3)


async def test_real_gpus_are_looked_at_until_nobody_wants_to_know(nvml: str) -> None:
    memory = GpuMemory("cuda", 2, list)
    assert list(memory.used_bytes) == []
    watching = asyncio.create_task(memory.watch(lambda: NvmlMemory(nvml)))
    await until(lambda: bool(memory.used_bytes))
    assert list(memory.used_bytes) == [5 * GIB, 7 * GIB]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize(("device", "count", "library"), [
    ("cuda", 2, "nowhere.so"), ("cuda", 0, None), ("none", 2, None),
])  # fmt: skip
async def test_gpus_of_which_nobody_tells_are_no_failure(
    nvml: str, device: str, count: int, library: str | None
) -> None:
    memory = GpuMemory(device, count, list)
    await within(memory.watch(lambda: NvmlMemory(library or nvml)))
    assert list(memory.used_bytes) == []


async def test_gpus_are_looked_at_again_after_a_call_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(gpu_memory, "LOOK_INTERVAL_S", 0.0)
    # What the driver gives, look by look; a number for a call that fails. `seen`: what was known before each look.
    looks: list[list[int] | int] = [15, [5, 7], 15, 999, [6, 7]]
    seen: list[list[int]] = []
    starts: list[int] = []
    memory = GpuMemory("cuda", 2, list)

    class Driver:
        def __init__(self) -> None:
            starts.append(len(seen))

        def used_bytes(self, _count: int) -> list[int]:
            seen.append(list(memory.used_bytes))
            found = looks[min(len(seen), len(looks)) - 1]
            if isinstance(found, int):
                raise NvmlError(f"nvmlDeviceGetMemoryInfo gave {found}")
            return found

    watching = asyncio.create_task(memory.watch(lambda: cast(NvmlMemory, Driver())))
    await until(lambda: len(seen) > len(looks))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert seen[: len(looks) + 1] == [[], [], [5, 7], [], [], [6, 7]]
    # The library is opened anew after each failure: a driver that was loaded again does not know the old handle.
    assert starts == [0, 1, 3, 4]


async def test_virtual_gpus_hold_what_their_workers_said() -> None:
    workers = [worker((0,), 3), worker((1,), 5), worker((), 100), worker((0,), 4), worker((9,), 1)]
    assert virtual_bytes(workers, 3) == [7, 5, 0]
    memory = GpuMemory("emulated", 2, lambda: workers)
    await within(memory.watch())
    assert list(memory.used_bytes) == [7, 5]
    registry = CollectorRegistry()
    DaemonMetrics(registry).follow_gpus(memory, 3)
    shown = [registry.get_sample_value("looseleaf_gpu_memory_used_bytes", {"gpu": str(index)}) for index in range(3)]
    assert shown[:2] == [7, 5] and shown[2] != shown[2]  # NaN for the one that is not known
