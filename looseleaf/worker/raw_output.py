"""Output that does not pass `sys.stdout`: C and C++ code, `os.write`, subprocesses, forked children of a cell."""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import os
import select
import threading
from typing import Final

from looseleaf.units import MIB
from looseleaf.worker.streams import OutputRelay

# A C library that prints while it holds the GIL stops for ever once the pipe is full: it is as large as allowed.
PIPE_BYTES: Final = 1 * MIB
_READ_BYTES: Final = 64 * 1024
_F_SETPIPE_SZ: Final = 1031


class RawOutput:
    """Puts a pipe behind fds 1 and 2 and gives what comes out of it to the relay."""

    def __init__(self, relay: OutputRelay) -> None:
        self._relay = relay
        self._lock = threading.RLock()
        self._sources: dict[int, str] = {}
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        for name, fd in (("stdout", 1), ("stderr", 2)):
            read_fd, write_fd = os.pipe()
            try:
                fcntl.fcntl(write_fd, _F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # over this user's pipe quota: the default size works too
            os.set_blocking(read_fd, False)
            os.dup2(write_fd, fd, inheritable=True)
            os.close(write_fd)
            self._sources[read_fd] = name
            self._decoders[read_fd] = codecs.getincrementaldecoder("utf-8")("replace")
        self._libc = ctypes.CDLL(None)
        self._thread = threading.Thread(target=self._watch, name="looseleaf-raw-output", daemon=True)

    def start(self) -> None:
        """Starts the thread that reads the pipes."""
        self._thread.start()

    def drain(self) -> None:
        """Gives everything written so far, C buffers included, to the relay."""
        self._libc.fflush(None)
        for fd in list(self._sources):
            self._take(fd)

    def _watch(self) -> None:
        poll = select.poll()
        for fd in self._sources:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if not self._take(fd):
                    poll.unregister(fd)  # the cell closed fd 1 or 2 itself

    def _take(self, fd: int) -> bool:
        """Reads all that is there; False at the end of the pipe."""
        with self._lock:
            while True:
                try:
                    data = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    return True
                if not data:
                    return False
                self._relay.write(self._sources[fd], self._decoders[fd].decode(data))
