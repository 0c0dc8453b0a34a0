"""What this host's GPUs are, asked once at the daemon's start."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import structlog

from looseleaf.devices import probe
from looseleaf.devices.description import GpuDescription, of_message
from looseleaf.errors import InvalidArgument
from looseleaf.v1 import scheduler_pb2 as pb

log = structlog.get_logger()

# A driver that was idle may take seconds to wake.
PROBE_TIMEOUT_S: Final = 60.0
OUTPUT_BYTES_MAX: Final = 1 << 20


async def probed_gpus(python: str) -> list[GpuDescription]:
    """The real GPUs that `python` sees here, none if the driver does not tell; never raises.

    Before the reaper starts, which would take the process's exit for one of its own.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-I", "-S", probe.__file__, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        log.warning("gpus_not_described", error=str(error))
        return []
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        log.warning("gpus_not_described", error="the driver did not answer", limit_s=PROBE_TIMEOUT_S)
        return []
    try:
        return [of_message(gpu) for gpu in json.loads(out[:OUTPUT_BYTES_MAX])]
    except (ValueError, TypeError, InvalidArgument) as error:
        log.warning("gpus_not_described", error=err.decode("utf-8", "replace")[-400:].strip() or str(error))
        return []


def gpu_message(gpu: GpuDescription | None) -> pb.GpuDescription | None:
    """As heartbeats carry it."""
    return pb.GpuDescription(**gpu.message()) if gpu is not None else None


def gpu_of(pool: pb.GetPoolResponse) -> GpuDescription | None:
    """What a cell of a host without GPUs may expect: the GPUs of the first live host that told of some."""
    for host in pool.hosts:
        if host.gpu_count and host.liveness != "dead" and host.HasField("gpu"):
            return of_message({field.name: getattr(host.gpu, field.name) for field in host.gpu.DESCRIPTOR.fields})
    return None
