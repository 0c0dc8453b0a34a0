from __future__ import annotations

import asyncio
import os
import socket
import sys

from daemon_fakes import within

from looseleaf.services.worker_daemon.peer_process import PeerProcess

CONNECTS = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
sys.stdin.read()
"""


async def test_peer_is_the_process_that_connected_and_its_end_is_seen() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        own = PeerProcess(ours)
        assert own.pid == os.getpid()
        waiting = asyncio.create_task(own.exited())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        own.close()
        own.close()
        await within(own.exited())


async def test_end_of_another_process_is_seen(tmp_path: object) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/l.sock")
        listener.listen(1)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONNECTS, f"{tmp_path}/l.sock", stdin=asyncio.subprocess.PIPE
        )
        connection, _address = await asyncio.to_thread(listener.accept)
        with connection:
            peer = PeerProcess(connection)
            assert peer.pid == process.pid and process.stdin is not None
            process.stdin.close()
            await within(peer.exited())
            peer.close()
        await within(process.wait())
