"""Ordered output of a worker: everything that a cell shows leaves through one relay, in the order it was made.

The stream objects exist before the zygote imports anything, so a library that keeps `sys.stderr` at import keeps the
right one; in the zygote, and in children that a cell forks, they write whole lines to the plain file descriptor.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.units import KIB, MIB, format_bytes
from looseleaf.worker.origin import ORIGIN
from looseleaf.worker.plain import plain

# Text waits at most this long before it is sent.
FLUSH_INTERVAL_S: Final = 0.1
# Characters that wait for the timed flush; more are sent at once.
BUFFERED_CHARS_MAX: Final = 64 * KIB
# Characters in one stream message, each of at most 4 bytes: well below a frame's limit.
STREAM_CHARS_MAX: Final = 1 * MIB
# Characters that a process without the relay collects into a line.
LINE_CHARS_MAX: Final = 4 * KIB

SendOutput = Callable[[dict[str, Any]], None]
# (origin, stream, text)
Chunk = tuple[str, str, str]


class OutputRelay:
    """Collects stream text and sends output messages by `send`, which may block while the daemon is behind.

    A message's `origin` is the request that the code which made it belongs to, if it knows one (worker/origin.py).
    `wait_until_sent` returns once what was sent has left this process: what a cell flushes must survive its crash.
    Thread-safe. Text waits for at most `FLUSH_INTERVAL_S`; any other message sends the text before it first.
    """

    def __init__(self, send: SendOutput, wait_until_sent: Callable[[], object] = lambda: None) -> None:
        self._send = send
        self.wait_until_sent = wait_until_sent
        # RLock: a signal handler may print while the main thread is inside.
        self._lock = threading.RLock()
        self._chunks: list[Chunk] = []
        self._chars = 0
        self._flushing = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._timer = threading.Thread(target=self._flush_loop, name="looseleaf-output", daemon=True)

    def start(self) -> None:
        """Starts the timed flush; never before the fork."""
        self._timer.start()

    def write(self, name: str, text: str) -> None:
        """Adds text to stream `name` ("stdout" or "stderr")."""
        if not text:
            return
        with self._lock:
            if not self._chunks:
                self._wake.put(None)
            self._chunks.append((ORIGIN.get(), name, text))
            self._chars += len(text)
            if self._chars >= BUFFERED_CHARS_MAX:
                self.flush()

    def flush(self) -> None:
        """Sends the text that waits; what an exception leaves unsent, such as an interrupt, waits on."""
        with self._lock:
            if self._flushing:
                return  # a signal handler prints while its thread is inside: the loop below takes that too
            try:
                self._flushing = True
                self._chunks = _pieces(self._chunks)
                while self._chunks:
                    origin, name, text = self._chunks[0]
                    self._send(_of_origin(plain({"type": "stream", "name": name, "text": text}), origin))
                    del self._chunks[0]
                self._chars = 0
            finally:
                self._flushing = False

    def publish(self, message: dict[str, Any]) -> None:
        """Sends one output message after all text before it.

        An output that is too large for a frame is replaced by a line on stderr that says so. Raises ValueError for a
        value that no notebook can hold.
        """
        cleaned = _of_origin(plain(message), ORIGIN.get())
        with self._lock:
            self.flush()
            try:
                self._send(cleaned)
            except InvalidArgument as error:
                if error.reason != "FRAME_TOO_LARGE":
                    raise
                size = format_bytes(float(error.fields.get("size_bytes", 0)))
                self.write("stderr", f"LooseLeaf: an output of {size} ({message['type']}) is too large to be shown.\n")
                self.flush()

    def _flush_loop(self) -> None:
        while True:
            self._wake.get()
            time.sleep(FLUSH_INTERVAL_S)
            while not self._wake.empty():  # of text that has left meanwhile
                self._wake.get()
            self.flush()


def _of_origin(message: dict[str, Any], origin: str) -> dict[str, Any]:
    return {**message, "origin": origin} if origin else message


def _pieces(chunks: list[Chunk]) -> list[Chunk]:
    """The same text in as few messages as its order and `STREAM_CHARS_MAX` allow."""
    merged: list[tuple[str, str, list[str]]] = []
    for origin, name, text in chunks:
        if merged and merged[-1][:2] == (origin, name):
            merged[-1][2].append(text)
        else:
            merged.append((origin, name, [text]))
    joined = [(origin, name, "".join(parts)) for origin, name, parts in merged]
    return [
        (origin, name, text[start : start + STREAM_CHARS_MAX])
        for origin, name, text in joined
        for start in range(0, len(text), STREAM_CHARS_MAX)
    ]


class OutStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a worker; behaves as ipykernel's."""

    def __init__(self, name: str, fd: int) -> None:
        super().__init__()
        self.name = name
        self._fd = fd
        self._relay: OutputRelay | None = None
        self._pid = 0
        # The unfinished line of a process without the relay: siblings write to the same pipe, line by line.
        self._line = ""

    def connect(self, relay: OutputRelay) -> None:
        """From now on text written by this process goes to `relay`."""
        self._relay = relay
        self._pid = os.getpid()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "UTF-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        """The plain file descriptor; what is written to it is shown too, though in no certain order."""
        return self._fd

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        if self._relay is not None and os.getpid() == self._pid:
            self._relay.write(self.name, text)
        else:
            self._line += text
            end = self._line.rfind("\n") + 1 if len(self._line) < LINE_CHARS_MAX else len(self._line)
            self._write_fd(end)
        return len(text)

    def flush(self) -> None:
        if self._relay is not None and os.getpid() == self._pid:
            self._relay.flush()
            self._relay.wait_until_sent()
        else:
            self._write_fd(len(self._line))

    def close(self) -> None:
        """Does nothing: a cell that closes its stdout must not silence the ones after it."""

    @property
    def closed(self) -> bool:
        return False

    def _write_fd(self, end: int) -> None:
        """Writes the first `end` characters of the unfinished line."""
        text, self._line = self._line[:end], self._line[end:]
        data = memoryview(text.encode("utf-8", "replace"))
        while data:
            data = data[os.write(self._fd, data) :]
