"""A service process for tests: a scheduler that answers GetPool; run as a script with the flags of SchedulerConfig.

ECHO_STOP_FILE names a file that its stop callback writes; ECHO_SLOW_S makes GetPool take that long, and it
touches ECHO_CALL_FILE first; ECHO_FAIL makes a background
task raise; ECHO_HANG blocks the event loop once started;
ECHO_BUILD_HANG makes the start last for ever.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looseleaf.config import SchedulerConfig
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server


class Servicer(SchedulerServiceServicer):
    async def GetPool(self, request: Any, context: Any) -> Any:
        if name := os.environ.get("ECHO_CALL_FILE"):
            await asyncio.to_thread(Path(name).touch)
        await asyncio.sleep(float(os.environ.get("ECHO_SLOW_S", "0")))
        return scheduler_pb2.GetPoolResponse(ready=True)


async def fail() -> None:
    raise RuntimeError("planted")


async def hang() -> None:
    time.sleep(600)  # noqa: ASYNC251


async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
    async def stop() -> None:
        if name := os.environ.get("ECHO_STOP_FILE"):
            await service.run_blocking(Path(name).write_text, "stopped")

    service.on_stop(stop)
    if os.environ.get("ECHO_BUILD_HANG"):
        await asyncio.Event().wait()
    if os.environ.get("ECHO_FAIL"):
        service.start_task(fail(), name="planted")
    if os.environ.get("ECHO_HANG"):
        service.start_task(hang(), name="hang")
    return [Registration(add_SchedulerServiceServicer_to_server, Servicer())]


if __name__ == "__main__":
    sys.exit(service_main("echo", SchedulerConfig, build))
