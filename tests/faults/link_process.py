"""Unix sockets between services that can be cut, in either direction; a process of its own, led over its pipes.

One JSON object a line on stdin, one line "done" on stdout when it was carried out:
{"do": "open", "link": NAME, "listen": PATH, "target": PATH} forwards each connection to PATH;
{"do": "hold", "link": NAME, "ways": ["there", "back"]} keeps what is sent on them, as a network that lost its way;
{"do": "release", "link": NAME} delivers it late, also when its sender is dead by now;
{"do": "drop", "link": NAME} ends the link's connections and forgets what was held.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

CHUNK_BYTES = 1 << 16


class Way:
    """One direction of a link."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the sender's end; after a late delivery for ever, so that the receiver has time to take it."""
        late = False
        while data := await reader.read(CHUNK_BYTES):
            late = late or not self.open.is_set()
            await self.open.wait()
            writer.write(data)
            await writer.drain()
        if late:
            await asyncio.Event().wait()
        await self.open.wait()


class Link:
    """One socket that stands for another."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.ways = {"there": Way(), "back": Way()}
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection."""
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
            writers.append(far_writer)
            ways = (self.ways["there"].carry(reader, far_writer), self.ways["back"].carry(far_reader, writer))
            ended = {asyncio.ensure_future(way) for way in ways}
            try:
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ended:
                    way.cancel()
                await asyncio.gather(*ended, return_exceptions=True)
        except OSError:
            pass  # nobody listens there now: the caller sees its connection end
        finally:
            for each in writers:
                each.close()

    async def drop(self) -> None:
        """Ends all connections."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


async def main() -> None:
    """Until stdin ends."""
    links: dict[str, Link] = {}
    servers: list[asyncio.Server] = []
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await _carry_out(json.loads(line), links, servers)
        print("done", flush=True)
    for server in servers:
        server.close()
    for link in links.values():
        await link.drop()


async def _carry_out(order: dict[str, Any], links: dict[str, Link], servers: list[asyncio.Server]) -> None:
    match order["do"]:
        case "open":
            link = links[order["link"]] = Link(order["target"])
            servers.append(await asyncio.start_unix_server(link.accept, order["listen"]))
        case "hold":
            for way in order["ways"]:
                links[order["link"]].ways[way].open.clear()
        case "release":
            for way in links[order["link"]].ways.values():
                way.open.set()
        case "drop":
            await links[order["link"]].drop()
        case unknown:
            raise ValueError(unknown)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
