"""What this host's GPUs are, and what those of a host without any may be told of the pool's."""

from __future__ import annotations

from pathlib import Path

from looseleaf.devices.description import GpuDescription
from looseleaf.services.worker_daemon.gpus import gpu_message, gpu_of, probed_gpus
from looseleaf.v1 import scheduler_pb2, types_pb2

GPU = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132, "12.8", "570.1", 50 << 20, 2048, 232448)


def _host(liveness: str = "alive", gpus: int = 1, gpu: GpuDescription | None = GPU) -> scheduler_pb2.HostState:
    return scheduler_pb2.HostState(
        host=types_pb2.HostAddress(host_id="h1", address="a"), gpu_count=gpus, liveness=liveness, gpu=gpu_message(gpu)
    )


def test_gpus_of_the_pool_are_those_of_its_first_live_host_that_told() -> None:
    hosts = [_host(gpus=0), _host(gpu=None), _host("dead"), _host()]
    assert gpu_of(scheduler_pb2.GetPoolResponse(hosts=hosts)) == GPU
    assert gpu_of(scheduler_pb2.GetPoolResponse(hosts=hosts[:3])) is None


async def test_probe_that_fails_or_talks_nonsense_describes_nothing(tmp_path: Path) -> None:
    for index, script in enumerate(("exit 1", "echo '[{\"name\": 1}]'", "echo nonsense")):
        program = tmp_path / f"python{index}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert await probed_gpus(str(program)) == []
    assert await probed_gpus(str(tmp_path / "no such python")) == []


async def test_probe_describes_what_the_driver_told(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'[{"name": "A", "memory_bytes": 5, "major": 8, "minor": 6, '
                       '"multi_processors": 3}]\'\n')  # fmt: skip
    program.chmod(0o755)
    assert await probed_gpus(str(program)) == [GpuDescription("A", 5, 8, 6, 3)]
