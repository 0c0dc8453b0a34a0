"""Requests between a `ThreadedLink` and the daemon's `AsyncLink`, which runs on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

import pytest

from looseleaf.errors import Conflict, Internal, InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.protocol.aio import AsyncChannel
from looseleaf.protocol.aio_rpc import HANDLERS_MAX, AsyncLink
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.rpc import Reply
from looseleaf.protocol.threaded import OUTGOING_FRAMES_MAX, ThreadedLink
from looseleaf.units import MIB

LIMIT_S = 20
BreakOff = Callable[[], AbstractContextManager[None]]


class Peer:
    """An AsyncLink in a thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.loop = asyncio.new_event_loop()
        self.events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self.ended: Future[LooseLeafError] = Future()
        self.release = asyncio.Event()
        self.handling = 0
        self._started: Future[AsyncLink] = Future()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._run(sock),))
        self._thread.start()
        self.link = self._started.result(LIMIT_S)

    async def _run(self, sock: socket.socket) -> None:
        link = AsyncLink(AsyncChannel(sock), {
            "echo": self.echo, "conflict": self.conflict, "bug": self.bug, "pipe": self.pipe, "wait": self.wait,
            "count_fds": self.count_fds,
        }, self.on_event)
        self._started.set_result(link)
        self.ended.set_result(await link.serve())

    async def echo(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"value": message["value"]}

    async def conflict(self, message: dict[str, Any], fds: list[int]) -> None:
        raise Conflict("MANIFEST_MOVED", "somebody was faster", version=7)

    async def bug(self, message: dict[str, Any], fds: list[int]) -> None:
        raise ZeroDivisionError("secret")

    async def pipe(self, message: dict[str, Any], fds: list[int]) -> Reply:
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"from the peer")
        os.close(write_fd)
        return Reply({}, [read_fd], close_fds=True)

    async def count_fds(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        return {"count": len(fds)}

    async def wait(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.handling += 1
        await self.release.wait()
        return {}

    async def on_event(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["t"] == "fault":
            raise ZeroDivisionError
        self.events.put(message)

    def ask(self, type_: str, body: dict[str, Any], timeout_s: float = LIMIT_S) -> dict[str, Any]:
        future = asyncio.run_coroutine_threadsafe(self.link.request(type_, body, timeout_s=timeout_s), self.loop)
        return future.result(LIMIT_S)[0]

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        self.loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        if not self.ended.done():
            self.call(self.link.close)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self.loop.close()


@pytest.fixture
def peer_and_socket(pair: tuple[socket.socket, socket.socket]) -> Iterator[tuple[Peer, socket.socket]]:
    peer = Peer(pair[0])
    yield peer, pair[1]
    peer.close()


@pytest.fixture
def linked(peer_and_socket: tuple[Peer, socket.socket]) -> Iterator[tuple[Peer, ThreadedLink]]:
    peer, sock = peer_and_socket
    link = ThreadedLink(Channel(sock)).start()
    yield peer, link
    link.close()


def test_request_gets_the_reply_of_its_handler(linked: tuple[Peer, ThreadedLink]) -> None:
    assert linked[1].request("echo", {"value": [1, b"x", None]}) == ({"value": [1, b"x", None]}, [])


def test_request_handler_raises_our_error_arrives_as_the_same_error(linked: tuple[Peer, ThreadedLink]) -> None:
    with pytest.raises(Conflict) as caught:
        linked[1].request("conflict", {})
    assert (caught.value.reason, caught.value.fields) == ("MANIFEST_MOVED", {"version": 7})


def test_request_handler_with_a_fault_arrives_as_internal_without_its_text(linked: tuple[Peer, ThreadedLink]) -> None:
    with pytest.raises(Internal) as caught:
        linked[1].request("bug", {})
    assert caught.value.fields["error_id"] in caught.value.message
    assert "secret" not in str(caught.value)


def test_request_of_unknown_type_is_refused(linked: tuple[Peer, ThreadedLink]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        linked[1].request("nonsense", {})
    assert caught.value.reason == "UNKNOWN_MESSAGE"


def test_request_reply_fds_are_the_callers(linked: tuple[Peer, ThreadedLink]) -> None:
    _, fds = linked[1].request("pipe", {})
    assert os.read(fds[0], 100) == b"from the peer"
    os.close(fds[0])


def test_request_fds_that_the_handler_leaves_are_closed(linked: tuple[Peer, ThreadedLink]) -> None:
    assert linked[1].request("count_fds", {}, [0, 1, 2])[0] == {"count": 3}


def test_request_without_answer_times_out_and_its_late_reply_is_dropped(linked: tuple[Peer, ThreadedLink]) -> None:
    peer, link = linked
    with pytest.raises(Timeout) as caught:
        link.request("wait", {}, timeout_s=0.02)
    assert caught.value.reason == "REQUEST_TIMEOUT"
    peer.call(peer.release.set)
    assert link.request("echo", {"value": 1})[0] == {"value": 1}


def test_begin_several_requests_answers_each_with_its_own_reply(linked: tuple[Peer, ThreadedLink]) -> None:
    pending = [linked[1].begin("echo", {"value": number}) for number in range(10)]
    assert [reply.result(LIMIT_S)[0]["value"] for reply in reversed(pending)] == list(reversed(range(10)))


def test_wait_for_a_reply_that_is_broken_off_may_begin_anew(
    linked: tuple[Peer, ThreadedLink], broken_off: BreakOff
) -> None:
    peer, link = linked
    reply = link.begin("wait", {})
    with broken_off():
        reply.result(LIMIT_S)
    peer.call(peer.release.set)
    assert reply.result(LIMIT_S)[0] == {}


def test_request_that_is_broken_off_drops_its_late_reply(
    linked: tuple[Peer, ThreadedLink], broken_off: BreakOff
) -> None:
    peer, link = linked
    with broken_off():
        link.request("wait", {}, timeout_s=LIMIT_S)
    assert not link._pending
    peer.call(peer.release.set)
    assert link.request("echo", {"value": 1})[0] == {"value": 1}


def test_events_arrive_in_order(linked: tuple[Peer, ThreadedLink]) -> None:
    peer, link = linked
    for number in range(100):
        link.send_event("tick", {"number": number})
    assert [peer.events.get(timeout=LIMIT_S)["number"] for _ in range(100)] == list(range(100))


def test_request_when_the_peer_goes_raises_peer_closed(linked: tuple[Peer, ThreadedLink]) -> None:
    peer, link = linked
    reply = link.begin("wait", {})
    peer.call(peer.link.close)
    with pytest.raises(Unavailable) as caught:
        reply.result(LIMIT_S)
    assert caught.value.reason == "PEER_CLOSED"
    assert peer.ended.result(LIMIT_S).reason == "PEER_CLOSED"


def test_peer_sees_the_end_when_the_link_closes(linked: tuple[Peer, ThreadedLink]) -> None:
    peer, link = linked
    link.close()
    assert peer.ended.result(LIMIT_S).reason == "PEER_CLOSED"


def test_threaded_link_hands_requests_events_and_the_end_to_its_callbacks(
    peer_and_socket: tuple[Peer, socket.socket],
) -> None:
    peer, sock = peer_and_socket
    seen: SimpleQueue[Any] = SimpleQueue()

    def on_request(message: dict[str, Any], fds: list[int]) -> None:
        if message["t"] == "double":
            link.reply(message["id"], {"value": 2 * message["value"]})
        else:
            link.reply_error(message["id"], Conflict("NOT_NOW"))

    link = ThreadedLink(Channel(sock), lambda message, fds: seen.put(message["t"]), on_request,
                        lambda error: seen.put(error.reason)).start()
    assert peer.ask("double", {"value": 21}) == {"value": 42}
    with pytest.raises(Conflict):
        peer.ask("other", {})
    asyncio.run_coroutine_threadsafe(peer.link.send_event("note", {}), peer.loop).result(LIMIT_S)
    assert seen.get(timeout=LIMIT_S) == "note"
    peer.call(peer.link.close)
    assert seen.get(timeout=LIMIT_S) == "PEER_CLOSED"
    with pytest.raises(Unavailable):
        link.request("echo", {"value": 1})
    link.close()


def test_threaded_link_without_request_callback_refuses_requests(peer_and_socket: tuple[Peer, socket.socket]) -> None:
    peer, sock = peer_and_socket
    link = ThreadedLink(Channel(sock)).start()
    with pytest.raises(InvalidArgument):
        peer.ask("anything", {})
    link.close()


def test_threaded_link_future_ends_with_reply_or_error(peer_and_socket: tuple[Peer, socket.socket]) -> None:
    link = ThreadedLink(Channel(peer_and_socket[1])).start()
    assert link.request_future("echo", {"value": 5}).result(LIMIT_S)[0] == {"value": 5}
    with pytest.raises(Conflict):
        link.request_future("conflict", {}).result(LIMIT_S)
    waiting = link.request_future("wait", {})
    cancelled = link.request_future("wait", {})
    assert cancelled.cancel()
    link.close()
    with pytest.raises(Unavailable):
        waiting.result(LIMIT_S)


def test_threaded_link_slow_peer_bounds_what_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    link = ThreadedLink(Channel(pair[0])).start()
    done = threading.Event()

    def send_all() -> None:
        for number in range(12):
            link.send_event("large", {"number": number, "data": bytes(MIB)})
        for number in range(3 * OUTGOING_FRAMES_MAX):
            link.send_event("small", {"number": number, "data": bytes(10_000)})
        done.set()

    thread = threading.Thread(target=send_all)
    thread.start()
    peer = Channel(pair[1])
    numbers = [peer.recv(LIMIT_S)[0]["number"] for _ in range(12 + 3 * OUTGOING_FRAMES_MAX)]
    assert numbers == [*range(12), *range(3 * OUTGOING_FRAMES_MAX)]
    assert done.wait(LIMIT_S)
    assert link.flush(LIMIT_S)
    thread.join(LIMIT_S)
    link.close()
    peer.close()


def test_threaded_link_in_a_forked_child_is_dead_and_the_parents_lives(
    peer_and_socket: tuple[Peer, socket.socket],
) -> None:
    link = ThreadedLink(Channel(peer_and_socket[1])).start()
    assert link.request("echo", {"value": 1})[0] == {"value": 1}
    pid = os.fork()
    if pid == 0:
        try:
            link.send_event("tick", {"number": -1})
        except Unavailable as error:
            os._exit(0 if error.reason == "FORKED_CHILD" else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert link.request("echo", {"value": 2})[0] == {"value": 2}
    link.close()


def test_threaded_link_peer_gone_seen_by_a_send_first_still_delivers_what_it_said(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than a message: when the send fails, the later ones still lie in the socket.
    monkeypatch.setattr("looseleaf.protocol.channel.RECEIVE_BYTES", 1024)
    send_failed = threading.Event()
    seen: SimpleQueue[Any] = SimpleQueue()

    class WatchedChannel(Channel):
        def send_frame(self, frame: bytes, fds: Any = ()) -> None:
            try:
                super().send_frame(frame, fds)
            except Unavailable:
                send_failed.set()
                raise

    def on_event(message: dict[str, Any], fds: list[int]) -> None:
        if message["number"] == 0:
            link.send_event("first to notice", {})
            assert send_failed.wait(LIMIT_S)
        seen.put(message["number"])

    peer = Channel(pair[0])
    for number in range(6):
        peer.send({"t": "x", "number": number, "pad": bytes(2000)})
    peer.close()
    link = ThreadedLink(WatchedChannel(pair[1]), on_event, on_close=lambda error: seen.put(error.reason))
    link.start()
    assert [seen.get(timeout=LIMIT_S) for _ in range(7)] == [*range(6), "PEER_CLOSED"]
    assert not link.flush(0.0)
    link.close()


def test_threaded_link_callback_with_a_fault_ends_the_link_and_nobody_waits(
    peer_and_socket: tuple[Peer, socket.socket],
) -> None:
    peer, sock = peer_and_socket
    ended: Future[LooseLeafError] = Future()

    def on_event(message: dict[str, Any], fds: list[int]) -> None:
        raise ZeroDivisionError

    link = ThreadedLink(Channel(sock), on_event, on_close=ended.set_result).start()
    waiting = link.begin("wait", {})
    asyncio.run_coroutine_threadsafe(peer.link.send_event("note", {}), peer.loop).result(LIMIT_S)
    with pytest.raises(Internal) as caught:
        waiting.result(LIMIT_S)
    assert caught.value.reason == "BUG"
    assert ended.result(LIMIT_S) is caught.value
    assert peer.ended.result(LIMIT_S).reason == "PEER_CLOSED"
    link.close()


def test_async_link_event_handler_with_a_fault_ends_the_link_and_serve_tells(
    peer_and_socket: tuple[Peer, socket.socket],
) -> None:
    peer, sock = peer_and_socket
    link = ThreadedLink(Channel(sock)).start()
    link.send_event("fault", {})
    assert peer.ended.result(LIMIT_S).reason == "BUG"
    with pytest.raises(Unavailable):
        link.request("echo", {"value": 1})
    link.close()


def test_async_link_more_requests_than_allowed_are_refused_and_events_flow(
    peer_and_socket: tuple[Peer, socket.socket],
) -> None:
    peer, sock = peer_and_socket
    link = ThreadedLink(Channel(sock)).start()
    waiting = [link.begin("wait", {}) for _ in range(HANDLERS_MAX)]
    with pytest.raises(LooseLeafError) as caught:
        link.request("wait", {})
    assert caught.value.reason == "TOO_MANY_REQUESTS"
    link.send_event("tick", {})
    assert peer.events.get(timeout=LIMIT_S) == {"t": "tick"}
    peer.call(peer.release.set)
    for reply in waiting:
        assert reply.result(LIMIT_S)[0] == {}
    link.close()


def test_async_link_request_times_out(peer_and_socket: tuple[Peer, socket.socket]) -> None:
    peer, sock = peer_and_socket
    link = ThreadedLink(Channel(sock), on_request=lambda message, fds: None).start()
    with pytest.raises(Timeout):
        peer.ask("silence", {}, timeout_s=0.02)
    link.close()
