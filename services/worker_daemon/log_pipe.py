"""A worker's own log: what it writes to its first standard streams, before and beside the person's output."""

from __future__ import annotations

import asyncio
import os

import structlog

from looseleaf.units import KIB

log = structlog.get_logger()

READ_BYTES = 16 * KIB
# A line longer than this is cut; a worker's log has short lines.
LINE_CHARS_MAX = 2000
DRAIN_READS_MAX = 64


class LogPipe:
    """Reads lines from `fd`, which it owns, and logs them with the worker's id."""

    def __init__(self, fd: int, worker_id: str) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._worker_id = worker_id
        self._rest = b""
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) > LINE_CHARS_MAX:
            lines, self._rest = [*lines, self._rest], b""
        self._tell(lines)
        if not data:
            self.close()
        return bool(data)

    def _tell(self, lines: list[bytes]) -> None:
        for line in filter(None, lines):
            log.warning("worker_said", worker=self._worker_id, text=line.decode("utf-8", "replace")[:LINE_CHARS_MAX])

    def drain(self) -> None:
        """Logs what a worker wrote just before its end, then closes."""
        for _ in range(DRAIN_READS_MAX):
            if self._fd < 0 or not self._read():
                break
        self.close()

    def close(self) -> None:
        """Ends reading. Idempotent."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._tell([self._rest])
