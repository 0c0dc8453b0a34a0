"""A process that answers: our gRPC server, a bare gRPC server and a plain socket, on Unix sockets and loopback TCP.

    python bench/echo_process.py FOLDER

Prints its addresses as one line of JSON when all of them answer, and ends when stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 64
BARE_METHOD = "/bench.Echo/Say"


def serve_socket(listener: socket.socket) -> None:
    """Sends back what comes, one connection at a time, on a thread of its own."""

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while data := connection.recv(MESSAGE_BYTES):
                    connection.sendall(data)

    listener.listen()
    threading.Thread(target=answer, daemon=True).start()


async def serve(folder: Path) -> None:
    """Until stdin ends."""
    import grpc

    from looseleaf.rpc.server import RpcServer

    async def say(request: bytes, _context: Any) -> bytes:
        return request

    handler = grpc.method_handlers_generic_handler("bench.Echo", {"Say": grpc.unary_unary_rpc_method_handler(say)})
    bare = grpc.aio.server()
    bare.add_generic_rpc_handlers((handler,))
    addresses = {"bare unix": f"unix:{folder}/bare.sock"}
    bare.add_insecure_port(addresses["bare unix"])
    addresses["bare tcp"] = f"127.0.0.1:{bare.add_insecure_port('127.0.0.1:0')}"
    await bare.start()
    ours: list[RpcServer] = []
    for kind, listen in (("unix", f"unix:{folder}/ours.sock"), ("tcp", "127.0.0.1:0")):
        server = RpcServer(listen)
        addresses[f"ours {kind}"] = server.bind()
        await server.start([])
        await server.set_ready(True)
        ours.append(server)
    with socket.socket(socket.AF_UNIX) as local, socket.socket(socket.AF_INET) as remote:
        local.bind(f"{folder}/raw.sock")
        remote.bind(("127.0.0.1", 0))
        for listener in (local, remote):
            serve_socket(listener)
        addresses.update({"raw unix": f"{folder}/raw.sock", "raw tcp": f"127.0.0.1:{remote.getsockname()[1]}"})
        print(json.dumps(addresses), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for server in ours:
        await server.stop(0)
    await bare.stop(0)


if __name__ == "__main__":
    from looseleaf.logs import configure_logs

    os.umask(0o077)
    # As a service does: each call is a line.
    configure_logs("bench")
    asyncio.run(serve(Path(sys.argv[1])))
