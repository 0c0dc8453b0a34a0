"""What executions said, for every caller that asks about the same id (design §6: at most one start)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator

import msgpack

from looseleaf.ids import ExecutionId
from looseleaf.units import MIB
from looseleaf.v1 import worker_daemon_pb2 as pb

EXECUTIONS_KEPT_MAX = 256
MESSAGES_BYTES_MAX = 64 * MIB
# Of all executions that ended: what callers may still fetch that lost their connection.
ENDED_BYTES_MAX = 256 * MIB
# Positions that one life of the daemon has for an execution's messages: those of the next life are behind all of them.
LIFE_MESSAGES = 1 << 40
# How far a record is cut back that grew over its limit.
CUT_SHARE = 0.9


class ExecutionRecord:
    """The messages of one execution in order; the last one is `saved`, or the last `left` if it left something running.

    Each message's `position` is its place, counted from `begin` + 1. Holds at most `MESSAGES_BYTES_MAX` of them: beyond
    it the oldest are dropped for callers that come late or are slow, and those are told how many.
    """

    def __init__(self, execution_id: ExecutionId, begin: int = 0) -> None:
        self.execution_id = execution_id
        self._begin = begin
        self.done = False
        self._followers = 0
        self._unheard_since_s = time.monotonic()
        self.size_bytes = 0
        self._messages: list[pb.ExecuteResponse] = []
        self._first = begin
        self._changed = asyncio.Event()

    def add(self, message: pb.ExecuteResponse) -> None:
        """Appends a message; what comes after the last one is dropped."""
        if self.done:
            return
        message.position = self._first + len(self._messages) + 1
        self._messages.append(message)
        self.size_bytes += message.ByteSize()
        if self.size_bytes > MESSAGES_BYTES_MAX:
            self._drop_oldest(int(MESSAGES_BYTES_MAX * CUT_SHARE))
        self.done = is_last(message)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def forget(self) -> None:
        """Drops all messages of an ended execution but the last."""
        self._drop_oldest(0)

    def _drop_oldest(self, size_bytes: int) -> None:
        count = 0
        while self.size_bytes > size_bytes and count < len(self._messages) - 1:
            self.size_bytes -= self._messages[count].ByteSize()
            count += 1
        del self._messages[:count]
        self._first += count

    def unheard_s(self) -> float:
        """For how long nobody has followed, in seconds."""
        return 0.0 if self._followers else time.monotonic() - self._unheard_since_s

    async def follow(self) -> AsyncGenerator[pb.ExecuteResponse, None]:
        """Every message from the beginning to the last."""
        sent = self._begin
        self._followers += 1
        try:
            while True:
                if sent < self._first:
                    yield dropped(self._first - sent, self._first)
                    sent = self._first
                elif sent < self._first + len(self._messages):
                    message = self._messages[sent - self._first]
                    sent += 1
                    yield message
                elif self.done:
                    return
                else:
                    await self._changed.wait()
        finally:
            self._followers -= 1
            self._unheard_since_s = time.monotonic()


def is_last(message: pb.ExecuteResponse) -> bool:
    """Whether nothing of the execution comes after `message`."""
    if message.HasField("saved"):
        return not message.saved.left_running
    return message.HasField("left") and message.left.state != pb.LEFT_STATE_HELD


def dropped(count: int, position: int) -> pb.ExecuteResponse:
    """What a caller is told instead of `count` messages that are not kept any more."""
    text = f"[looseleaf: {count} earlier output messages were dropped, the limit is {MESSAGES_BYTES_MAX // MIB} MiB]\n"
    output = msgpack.packb({"type": "stream", "name": "stderr", "text": text})
    return pb.ExecuteResponse(output=output, position=position)


class ExecutionLog:
    """The executions of this host: all that run, and of the ended ones the newest `EXECUTIONS_KEPT_MAX`.

    Those hold `ENDED_BYTES_MAX` together; of older ones only the end is kept.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[ExecutionId, ExecutionRecord] = OrderedDict()

    def get(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        """The record of an execution that was started here, if it is still kept."""
        return self._records.get(execution_id)

    def start(self, execution_id: ExecutionId) -> ExecutionRecord:
        """A new record; the id must not be known yet."""
        return self.keep(ExecutionRecord(execution_id))

    def keep(self, record: ExecutionRecord) -> ExecutionRecord:
        """Takes in a record; its id must not be known yet."""
        if record.execution_id in self._records:
            raise AssertionError("an execution starts once")
        ended = [record for record in reversed(self._records.values()) if record.done]
        for old in ended[EXECUTIONS_KEPT_MAX - 1 :]:
            del self._records[old.execution_id]
        kept_bytes = 0
        for old in ended:
            kept_bytes += old.size_bytes
            if kept_bytes > ENDED_BYTES_MAX:
                old.forget()
        self._records[record.execution_id] = record
        return record
