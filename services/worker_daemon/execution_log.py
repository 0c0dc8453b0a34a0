"""What executions said, for every caller that asks about the same id (design §6: at most one start)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

import msgpack

from looseleaf.ids import ExecutionId
from looseleaf.units import MIB
from looseleaf.v1 import worker_daemon_pb2 as pb

EXECUTIONS_KEPT_MAX = 256
MESSAGES_BYTES_MAX = 64 * MIB


class ExecutionRecord:
    """The messages of one execution in order; the last one is `saved`.

    Holds at most `MESSAGES_BYTES_MAX` of outputs: beyond it the oldest outputs are dropped for callers that come
    late, and those are told how many.
    """

    def __init__(self, execution_id: ExecutionId) -> None:
        self.execution_id = execution_id
        self.done = False
        self._messages: list[pb.ExecuteResponse] = []
        self._first = 0
        self._bytes = 0
        self._changed = asyncio.Event()

    def add(self, message: pb.ExecuteResponse) -> None:
        """Appends a message; `saved` ends the record."""
        if self.done:
            return
        self._messages.append(message)
        self._bytes += message.ByteSize()
        while self._bytes > MESSAGES_BYTES_MAX and len(self._messages) > 1:
            self._bytes -= self._messages.pop(0).ByteSize()
            self._first += 1
        self.done = message.HasField("saved")
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncIterator[pb.ExecuteResponse]:
        """Every message from the beginning until the execution is saved."""
        position = 0
        while True:
            if position < self._first:
                yield _dropped(self._first - position)
                position = self._first
            if position < self._first + len(self._messages):
                yield self._messages[position - self._first]
                position += 1
            elif self.done:
                return
            else:
                await self._changed.wait()


def _dropped(count: int) -> pb.ExecuteResponse:
    text = f"[looseleaf: {count} earlier output messages were dropped, the limit is {MESSAGES_BYTES_MAX // MIB} MiB]\n"
    return pb.ExecuteResponse(output=msgpack.packb({"type": "stream", "name": "stderr", "text": text}))


class ExecutionLog:
    """The executions of this host, newest `EXECUTIONS_KEPT_MAX` of the ended ones kept."""

    def __init__(self) -> None:
        self._records: OrderedDict[ExecutionId, ExecutionRecord] = OrderedDict()

    def get(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        """The record of an execution that was started here, if it is still kept."""
        return self._records.get(execution_id)

    def start(self, execution_id: ExecutionId) -> ExecutionRecord:
        """A new record; the id must not be known yet."""
        if execution_id in self._records:
            raise AssertionError("an execution starts once")
        self._records[execution_id] = record = ExecutionRecord(execution_id)
        ended = [key for key, old in self._records.items() if old.done]
        for key in ended[: max(0, len(self._records) - EXECUTIONS_KEPT_MAX)]:
            del self._records[key]
        return record
