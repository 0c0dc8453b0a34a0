from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import structlog
from daemon_fakes import until

from looseleaf.services.worker_daemon import log_pipe
from looseleaf.services.worker_daemon.log_pipe import LogPipe


@dataclass
class Pipe:
    """The worker's end, and what was logged."""

    log: LogPipe
    write_fd: int
    events: list[structlog.typing.EventDict]

    def write(self, data: bytes) -> None:
        os.write(self.write_fd, data)

    @property
    def texts(self) -> list[str]:
        return [event["text"] for event in self.events]


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    read_fd, write_fd = os.pipe()
    with structlog.testing.capture_logs() as events:
        made = Pipe(LogPipe(read_fd, "w-1"), write_fd, events)  # type: ignore[arg-type]
        yield made
        made.log.close()
    os.close(write_fd)


async def test_lines_are_logged_with_their_worker(pipe: Pipe) -> None:
    pipe.write(b"first\n\nsec")
    await until(lambda: pipe.texts == ["first"])
    pipe.write(b"ond\n")
    await until(lambda: pipe.texts == ["first", "second"])
    assert {event["worker"] for event in pipe.events} == {"w-1"}


async def test_last_words_are_logged_at_the_drain(pipe: Pipe) -> None:
    pipe.write(b"no newline, \xff")
    pipe.log.drain()
    assert pipe.texts == ["no newline, �"]
    pipe.log.close()


async def test_line_without_end_is_cut(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pipe, "LINE_CHARS_MAX", 10)
    pipe.write(b"x" * 25)
    await until(lambda: pipe.texts == ["x" * 10])
