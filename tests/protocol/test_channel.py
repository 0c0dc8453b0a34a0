from __future__ import annotations

import os
import socket
import threading

import pytest

from looseleaf.errors import InvalidArgument, Timeout, Unavailable
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import FRAME_BYTES_MAX, FRAME_FDS_MAX, encode_frame
from looseleaf.units import MIB

Pair = tuple[socket.socket, socket.socket]


def test_channel_message_with_fds_arrives_with_working_fds(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    read_fd, write_fd = os.pipe()
    left.send({"t": "first"})
    left.send({"t": "with_fds", "n": 1}, [read_fd, write_fd])
    left.send({"t": "last"})
    os.close(read_fd)
    os.close(write_fd)
    assert right.recv(5) == ({"t": "first"}, [])
    message, fds = right.recv(5)
    assert message == {"t": "with_fds", "n": 1}
    assert not any(os.get_inheritable(fd) for fd in fds)
    os.write(fds[1], b"hello")
    assert os.read(fds[0], 5) == b"hello"
    for fd in fds:
        os.close(fd)
    assert right.recv(5) == ({"t": "last"}, [])
    left.close()
    right.close()


def test_channel_most_fds_on_each_of_many_frames_keep_their_frames(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    numbers = list(range(4))
    for number in numbers:
        left.send({"t": "fds", "number": number, "pad": bytes(1000)}, [0] * (FRAME_FDS_MAX - number))
    for number in numbers:
        message, fds = right.recv(5)
        assert (message["number"], len(fds)) == (number, FRAME_FDS_MAX - number)
        for fd in fds:
            os.close(fd)
    left.close()
    right.close()


def test_channel_large_message_passes_between_threads(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    data = os.urandom(20 * MIB)
    sender = threading.Thread(target=left.send, args=({"t": "large", "data": data},))
    sender.start()
    message, _ = right.recv(30)
    sender.join(30)
    assert message["data"] == data
    left.close()
    right.close()


def test_channel_send_from_many_threads_keeps_messages_whole(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    threads = [
        threading.Thread(target=lambda n=n: [left.send({"t": "x", "n": n, "pad": bytes(50_000)}) for _ in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    counts = [0] * 4
    for _ in range(80):
        counts[right.recv(30)[0]["n"]] += 1
    for thread in threads:
        thread.join(30)
    assert counts == [20] * 4
    left.close()
    right.close()


def test_channel_recv_without_a_message_times_out_and_loses_nothing(pair: Pair) -> None:
    channel = Channel(pair[1])
    frame = encode_frame({"t": "late"})
    pair[0].sendall(frame[:3])
    with pytest.raises(Timeout) as caught:
        channel.recv(0.01)
    assert caught.value.reason == "RECEIVE_TIMEOUT"
    pair[0].sendall(frame[3:])
    assert channel.recv(5)[0] == {"t": "late"}
    channel.close()


@pytest.mark.parametrize("cut", [0, 2, 6])
def test_channel_end_of_stream_raises_peer_closed(pair: Pair, cut: int) -> None:
    channel = Channel(pair[1])
    pair[0].sendall(encode_frame({"t": "cut"})[:cut])
    pair[0].close()
    with pytest.raises(Unavailable) as caught:
        channel.recv(5)
    assert caught.value.reason == "PEER_CLOSED"
    assert ("in the middle" in caught.value.message) == (cut > 0)
    channel.close()


def test_channel_send_to_a_closed_peer_raises_peer_closed(pair: Pair) -> None:
    channel = Channel(pair[0])
    pair[1].close()
    with pytest.raises(Unavailable) as caught:
        channel.send({"t": "x", "data": bytes(MIB)})
    assert caught.value.reason == "PEER_CLOSED"
    channel.close()


def test_channel_send_interrupted_by_an_exception_ends_the_stream(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel(pair[0])
    monkeypatch.setattr("looseleaf.protocol.channel.send_some", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        channel.send({"t": "x"})
    assert pair[1].recv(10) == b""
    channel.close()


def _interrupt(*_: object) -> int:
    raise KeyboardInterrupt


def test_channel_frame_too_large_is_refused_and_the_channel_lives(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    with pytest.raises(InvalidArgument):
        left.send({"t": "x", "data": bytes(FRAME_BYTES_MAX)})
    left.send({"t": "small"})
    assert right.recv(5)[0] == {"t": "small"}
    left.close()
    right.close()


def test_channel_close_wakes_a_blocked_receiver_and_closes_untaken_fds(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    reasons: list[str] = []

    def receive() -> None:
        try:
            right.recv()
        except Unavailable as error:
            reasons.append(error.reason)

    pair[0].sendmsg([encode_frame({"t": "x"}, 1)[:4]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\0\0\0\0")])
    thread = threading.Thread(target=receive)
    thread.start()
    right.shutdown()
    thread.join(5)
    assert reasons == ["PEER_CLOSED"]
    right.close()
    left.close()
