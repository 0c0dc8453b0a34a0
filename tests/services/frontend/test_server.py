from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from looseleaf.rpc.client import open_channel
from looseleaf.v1 import frontend_pb2, recipe_pb2
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceStub

LIMIT_S = 40.0


async def test_frontend_process_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/frontend.sock"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "looseleaf.services.frontend",
        "--listen", address, "--store", f"unix:{tmp_path}/none.sock", "--scheduler", f"unix:{tmp_path}/none.sock",
        "--data", str(tmp_path / "data"), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with open_channel(address, peer="frontend") as channel:
            await channel.wait_ready(LIMIT_S)
            request = frontend_pb2.RecordRunsRequest(
                session_id="s-1", runs=[recipe_pb2.CellRun(sequence=1, cell_id="c", source="a = 1", ok=True)]
            )
            response = await FrontendServiceStub(channel).RecordRuns(request, timeout_s=LIMIT_S)
            assert response.next_sequence == 2
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), LIMIT_S)
        assert process.returncode == 0, log
        assert b"a = 1" not in log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
