"""The operator's commands against real servers: counts, checks, a backup, and a store made of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from looseleaf.dirty_tracker import hash128
from looseleaf.rpc.client import open_channel
from looseleaf.v1 import checkpoint_store_admin_pb2 as admin_pb
from looseleaf.v1 import checkpoint_store_pb2 as store_pb
from looseleaf.v1.checkpoint_store_admin_pb2_grpc import CheckpointStoreAdminServiceStub
from looseleaf.v1.checkpoint_store_pb2_grpc import CheckpointStoreServiceStub

from .conftest import Server, make_state, region_chunks

STATE = make_state(["a", "b"], ["a", "b"], 3_000)


def on_tcp(make_server: Callable[..., Server]) -> Server:
    """A server that the command line finds as it does in a container: by the daemon's setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    server = make_server(listen=address)
    server.address = address
    return server


# Runs the commands of each line that it reads, and answers with the exit code and what they printed: the program is
# imported once.
COMMANDS = """
import contextlib, io, json, os, sys
from looseleaf.cli.main import main
for line in sys.stdin:
    address, folder, arguments = json.loads(line)
    os.environ.update(LOOSELEAF_DAEMON_STORE=address, LOOSELEAF_DATA=folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["store", *arguments])
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Store = Callable[..., Done]


@pytest.fixture
def store() -> Iterator[Store]:
    """`looseleaf store ...` of a server."""
    command = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        stdin, stdout = program.stdin, program.stdout
        assert stdin is not None and stdout is not None

        def run(server: Server, *arguments: str) -> Done:
            asked = [server.address, str(server.data.parent / "no-cluster"), arguments]
            stdin.write(json.dumps(asked) + "\n")
            stdin.flush()
            return Done(*json.loads(stdout.readline()))

        yield run
        stdin.close()


async def save(server: Server) -> bytes:
    async with server.client(20) as client:
        head = await client.open_session("s-1", create=True)
        await client.put_units(STATE.unit_pairs())
        await client.put_regions(region_chunks(STATE.region_chunks()))
        manifest = STATE.manifest("s-1", 0, head.epoch, "x-1")
        assert await client.commit(
            "s-1", epoch=head.epoch, parent=0, execution_id="x-1", manifest=manifest, host_id=""
        ) == (1, True)
    return manifest


async def test_store_is_counted_checked_backed_up_and_restored(
    make_server: Callable[..., Server], store: Store, tmp_path: Path
) -> None:
    server = on_tcp(make_server)
    manifest = await save(server)
    counts = json.loads(store(server, "stats", "--json").stdout)
    assert (counts["sessions"], counts["durable_versions"], counts["regions_on_disk"]) == (1, 1, 2)
    assert counts["tenants"] == [
        {"tenant": "default", "sessions": 1, "used_bytes": counts["used_bytes"], "bytes_max": counts["bytes_max"]}
    ]
    assert "2 on the disk" in store(server, "stats").stdout
    async with open_channel(server.address, peer="store") as channel:
        stub: Any = CheckpointStoreAdminServiceStub(channel)
        before = await stub.GetStoreStats(admin_pb.GetStoreStatsRequest(totals_only=True), timeout_s=20)
        collector: Any = CheckpointStoreServiceStub(channel)
        await collector.CollectGarbage(store_pb.CollectGarbageRequest(request_id="r-1"), timeout_s=20)
        after = await stub.GetStoreStats(admin_pb.GetStoreStatsRequest(totals_only=True), timeout_s=20)
    assert (before.sessions, before.used_bytes, before.regions) == (1, int(counts["used_bytes"]), 0)
    assert not before.HasField("last_collection") and after.last_collection.ended_s_ago >= 0
    checked = store(server, "verify")
    assert checked.returncode == 0 and "4 units and regions: 0 problem(s)" in checked.stdout, checked
    assert "freed 0 version(s)" in store(server, "gc").stdout
    saved = store(server, "backup", str(tmp_path / "backup"))
    assert "copied 1 session(s) with 1 version(s)" in saved.stdout, saved
    again = store(server, "backup", str(tmp_path / "backup"))
    assert again.returncode == 2 and "BACKUP_FOLDER" in again.stderr
    full = store(server, "restore", str(tmp_path / "backup"))
    assert full.returncode == 5 and "STORE_NOT_EMPTY" in full.stderr
    other = on_tcp(make_server)
    async with other.client(20):
        restored = store(other, "restore", str(tmp_path / "backup"))
    assert "copied 1 session(s)" in restored.stdout, restored
    async with other.client() as client:
        assert (await client.manifest("s-1")).manifest == manifest
        chunks = [data async for _, _, data in client.get_regions([key for key, _ in STATE.region_chunks()])]
        assert chunks == list(STATE.regions.values())
    assert store(other, "verify").returncode == 0
    damage(other)
    broken = store(other, "verify")
    assert broken.returncode == 1 and "is damaged on the store's disk" in broken.stdout
    # It is remembered.
    marked = store(other, "verify", "--index-only")
    assert marked.returncode == 1 and "is damaged on the disk" in marked.stdout
    assert json.loads(store(other, "stats", "--json").stdout)["regions_damaged"] == 1


def damage(server: Server) -> None:
    """One byte of the first region."""
    victim = hash128(next(iter(STATE.regions.values())))
    path = server.data / "regions" / "regions-0000.bin"
    data = path.read_bytes()
    at = next(start for start in range(0, len(data), 2 << 20) if hash128(data[start : start + 6_000]) == victim)
    with path.open("r+b") as file:
        file.seek(at + 9)
        file.write(b"\xff")
