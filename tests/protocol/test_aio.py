from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from looseleaf.errors import InvalidArgument, Unavailable
from looseleaf.protocol.aio import INCOMING_MESSAGES_MAX, OUTGOING_BYTES_MAX, AsyncChannel
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import encode_frame
from looseleaf.units import MIB

Pair = tuple[socket.socket, socket.socket]
LIMIT_S = 20


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop work until `condition` holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - the channel has no event for its insides
            await asyncio.sleep(0)


async def test_async_channel_passes_messages_and_fds_both_ways(pair: Pair) -> None:
    left, right = AsyncChannel(pair[0]), AsyncChannel(pair[1])
    read_fd, write_fd = os.pipe()
    await left.send({"t": "fds"}, [write_fd])
    os.close(write_fd)
    message, fds = await asyncio.wait_for(right.recv(), LIMIT_S)
    os.write(fds[0], b"x")
    assert (message, os.read(read_fd, 1)) == ({"t": "fds"}, b"x")
    await right.send({"t": "back"})
    assert await asyncio.wait_for(left.recv(), LIMIT_S) == ({"t": "back"}, [])
    os.close(fds[0])
    os.close(read_fd)
    left.close()
    right.close()


async def test_async_channel_slow_peer_holds_the_sender_back(pair: Pair) -> None:
    left = AsyncChannel(pair[0])
    sent = 0

    async def send_all() -> None:
        nonlocal sent
        for _ in range(40):
            await left.send({"t": "x", "data": bytes(MIB)})
            sent += 1

    task = asyncio.ensure_future(send_all())
    await until(lambda: left.outgoing_bytes > OUTGOING_BYTES_MAX)
    assert sent < 40
    assert left.outgoing_bytes <= OUTGOING_BYTES_MAX + 2 * MIB
    right = AsyncChannel(pair[1])
    for _ in range(40):
        await asyncio.wait_for(right.recv(), LIMIT_S)
    await asyncio.wait_for(task, LIMIT_S)
    assert left.outgoing_bytes == 0
    left.close()
    right.close()


async def test_async_channel_nobody_takes_messages_stops_reading_at_the_limit(pair: Pair) -> None:
    right = AsyncChannel(pair[1])
    left = AsyncChannel(pair[0])
    total = INCOMING_MESSAGES_MAX * 3
    for number in range(total):
        await left.send({"t": "x", "number": number})
    await until(lambda: len(right._incoming) >= INCOMING_MESSAGES_MAX)
    assert len(right._incoming) == INCOMING_MESSAGES_MAX
    for number in range(total):
        assert (await asyncio.wait_for(right.recv(), LIMIT_S))[0]["number"] == number
    left.close()
    right.close()


async def test_async_channel_peer_gone_delivers_what_came_then_raises(pair: Pair) -> None:
    right = AsyncChannel(pair[1])
    pair[0].sendall(encode_frame({"t": "a"}) + encode_frame({"t": "b"})[:3])
    pair[0].close()
    assert (await asyncio.wait_for(right.recv(), LIMIT_S))[0] == {"t": "a"}
    with pytest.raises(Unavailable):
        await asyncio.wait_for(right.recv(), LIMIT_S)
    with pytest.raises(Unavailable):
        await right.send({"t": "x"})
    assert right.closed
    right.close()


async def test_async_channel_peer_gone_seen_by_a_send_first_still_delivers_what_it_said(pair: Pair) -> None:
    right = AsyncChannel(pair[1])
    for number in range(3):
        pair[0].sendall(encode_frame({"t": "x", "number": number, "pad": bytes(50_000)}))
    pair[0].close()
    await right.send({"t": "first to notice"})
    with pytest.raises(Unavailable):
        await right.send({"t": "x"})
    assert [(await asyncio.wait_for(right.recv(), LIMIT_S))[0]["number"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Unavailable):
        await asyncio.wait_for(right.recv(), LIMIT_S)
    right.close()


async def test_async_channel_peer_gone_wakes_a_waiting_sender(pair: Pair) -> None:
    left = AsyncChannel(pair[0])

    async def send_all() -> None:
        for _ in range(40):
            await left.send({"t": "x", "data": bytes(MIB)})

    task = asyncio.ensure_future(send_all())
    await until(lambda: left.outgoing_bytes > OUTGOING_BYTES_MAX)
    pair[1].close()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(task, LIMIT_S)
    left.close()


async def test_async_channel_nonsense_from_the_peer_raises_and_ends_it(pair: Pair) -> None:
    right = AsyncChannel(pair[1])
    pair[0].sendall(b"\x01\x00\x00\x00\xc1")
    with pytest.raises(InvalidArgument):
        await asyncio.wait_for(right.recv(), LIMIT_S)
    assert right.closed
    right.close()


async def test_async_channel_close_closes_fds_that_nobody_took(pair: Pair) -> None:
    left, right = Channel(pair[0]), AsyncChannel(pair[1])
    left.send({"t": "x"}, [0, 1])
    await until(lambda: bool(right._incoming))
    right.close()
    left.close()


async def test_async_channel_close_wakes_a_waiting_receiver(pair: Pair) -> None:
    right = AsyncChannel(pair[1])
    task = asyncio.ensure_future(right.recv())
    await asyncio.sleep(0)
    right.close()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(task, LIMIT_S)
