from __future__ import annotations

import io
import os
import threading
from typing import Any

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.worker.streams import BUFFERED_CHARS_MAX, LINE_CHARS_MAX, STREAM_CHARS_MAX, OutputRelay, OutStream


def relay() -> tuple[OutputRelay, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []
    return OutputRelay(sent.append), sent


def test_relay_joins_text_of_one_stream_and_keeps_the_order_of_both() -> None:
    made, sent = relay()
    for name, text in [("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d"), ("stdout", "")]:
        made.write(name, text)
    assert sent == []
    made.flush()
    assert [(m["name"], m["text"]) for m in sent] == [("stdout", "ab"), ("stderr", "c"), ("stdout", "d")]
    made.flush()
    assert len(sent) == 3


def test_relay_message_is_sent_after_the_text_before_it() -> None:
    made, sent = relay()
    made.write("stdout", "before")
    made.publish({"type": "clear_output", "wait": True})
    made.write("stdout", "after")
    made.flush()
    assert [m["type"] for m in sent] == ["stream", "clear_output", "stream"]


def test_relay_full_buffer_is_sent_at_once() -> None:
    made, sent = relay()
    made.write("stdout", "x" * BUFFERED_CHARS_MAX)
    assert len(sent) == 1


def test_relay_text_of_any_length_is_sent_in_pieces_that_fit() -> None:
    made, sent = relay()
    made.write("stdout", "x" * (2 * STREAM_CHARS_MAX + 1))
    assert [len(m["text"]) for m in sent] == [STREAM_CHARS_MAX, STREAM_CHARS_MAX, 1]


def test_relay_send_that_is_interrupted_loses_no_text() -> None:
    sent: list[str] = []
    interrupts = [True, False, True, False]

    def send(message: dict[str, Any]) -> None:
        if interrupts and interrupts.pop(0):
            raise KeyboardInterrupt
        sent.append(message["text"])

    made = OutputRelay(send)
    for name, text in [("stdout", "a"), ("stderr", "b"), ("stdout", "c")]:
        made.write(name, text)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            made.flush()
    made.flush()
    assert sent == ["a", "b", "c"]


def test_relay_text_of_a_signal_handler_that_runs_inside_a_flush_comes_after_it() -> None:
    sent: list[str] = []

    def send(message: dict[str, Any]) -> None:
        if not sent:
            made.write("stdout", "handler " * BUFFERED_CHARS_MAX)
            made.flush()
        sent.append(message["text"])

    made = OutputRelay(send)
    made.write("stdout", "cell ")
    made.flush()
    assert sent[0] == "cell "
    assert "".join(sent) == "cell " + "handler " * BUFFERED_CHARS_MAX


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_relay_waiting_text_is_sent_by_the_timer() -> None:
    sent = threading.Event()

    def send(message: dict[str, Any]) -> None:
        sent.set()
        raise SystemExit  # ends the timer's thread

    made = OutputRelay(send)
    made.start()
    made.write("stdout", "x")
    assert sent.wait(20)


def test_relay_message_too_large_is_replaced_by_a_line() -> None:
    sent: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> None:
        if message["type"] == "display_data":
            raise InvalidArgument("FRAME_TOO_LARGE", size_bytes=50 << 20)
        sent.append(message)

    OutputRelay(send).publish({"type": "display_data", "data": {}})
    assert "50.0 MiB (display_data) is too large" in sent[0]["text"]


def test_relay_other_errors_of_the_connection_are_not_hidden() -> None:
    def send(message: dict[str, Any]) -> None:
        raise InvalidArgument("MESSAGE_NOT_PLAIN")

    with pytest.raises(InvalidArgument):
        OutputRelay(send).publish({"type": "display_data", "data": {}})


def test_stream_before_it_is_connected_writes_to_its_fd() -> None:
    read_fd, write_fd = os.pipe()
    stream = OutStream("stdout", write_fd)
    assert stream.write("caf\xe9\ud800") == 5
    stream.flush()
    assert os.read(read_fd, 100) == b"caf\xc3\xa9?"
    # Whole lines only: siblings write to the same pipe.
    print("one", "line\nand", "more", end="", file=stream)
    assert os.read(read_fd, 100) == b"one line\n"
    stream.write("x" * LINE_CHARS_MAX)
    assert os.read(read_fd, 2 * LINE_CHARS_MAX) == b"and more" + b"x" * LINE_CHARS_MAX
    assert stream.fileno() == write_fd
    os.close(read_fd)
    os.close(write_fd)


def test_stream_connected_writes_to_the_relay() -> None:
    made, sent = relay()
    stream = OutStream("stderr", 2)
    stream.connect(made)
    print("a", "b", file=stream)
    stream.writelines(["c", "d"])
    stream.flush()
    assert [(m["name"], m["text"]) for m in sent] == [("stderr", "a b\ncd")]


def test_stream_behaves_as_a_text_stream_without_terminal() -> None:
    stream = OutStream("stdout", 1)
    assert isinstance(stream, io.TextIOBase)
    assert (stream.isatty(), stream.writable(), stream.readable(), stream.encoding) == (False, True, False, "UTF-8")
    with pytest.raises(TypeError, match="must be str"):
        stream.write(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(io.UnsupportedOperation):
        stream.read()
