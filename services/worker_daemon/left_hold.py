"""What a cell left running keeps its GPU for a limited time (design §6: a run never waits for it longer)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.execution_log import ExecutionRecord
from looseleaf.v1 import worker_daemon_pb2 as pb

# What ends by itself so soon is not worth a word to the person.
TELL_AFTER_S = 2.0


class LeftHold:
    """From a cell's save to the end of what it left running, of its time, or of anybody's wish to wait for it.

    `record` gets the news, but for the last ones: those are `last_news` once `until_over` has returned.
    """

    def __init__(self, items: list[pb.LeftItem], limit_s: float, record: ExecutionRecord) -> None:
        self._items = items
        self._limit_s = limit_s
        self._record = record
        self._state: asyncio.Future[pb.LeftState] = asyncio.get_running_loop().create_future()

    def changed(self, items: list[pb.LeftItem]) -> None:
        """The worker says what still runs."""
        if items:
            self._items = items
        else:
            self.end(pb.LEFT_STATE_ENDED)

    def end(self, state: pb.LeftState) -> None:
        """The hold is over because of `state`; only the first reason counts."""
        if not self._state.done():
            self._state.set_result(state)

    async def until_over(self, lost: asyncio.Future[Any]) -> pb.LeftState:
        """Why it was over; `lost`: the worker's end."""
        limit_s = time.monotonic() + self._limit_s
        for until_s, then in (
            (min(limit_s, time.monotonic() + TELL_AFTER_S), pb.LEFT_STATE_HELD), (limit_s, pb.LEFT_STATE_LIMIT),
        ):  # fmt: skip
            await asyncio.wait(
                {self._state, lost}, timeout=max(0.0, until_s - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            if lost.done():
                self.end(pb.LEFT_STATE_LOST)
            if self._state.done():
                break
            if then is pb.LEFT_STATE_HELD:
                self._record.add(pb.ExecuteResponse(left=self._news(then)))
            else:
                self.end(then)
        return self._state.result()

    @property
    def last_news(self) -> pb.LeftNews:
        """What became of it; an interrupted wait counts as the worker's end."""
        return self._news(self._state.result() if self._state.done() else pb.LEFT_STATE_LOST)

    def _news(self, state: pb.LeftState) -> pb.LeftNews:
        return pb.LeftNews(state=state, items=self._items, limit_s=self._limit_s)


def left_items(message: dict[str, Any], key: str) -> list[pb.LeftItem]:
    """The worker's rows {kind, name} under `key`. Raises InvalidArgument `FIELD_MALFORMED`."""
    rows = [fields.mapping({"left": row}, "left") for row in fields.sequence(message, key, [])]
    return [pb.LeftItem(kind=fields.text(row, "kind"), name=fields.text(row, "name")) for row in rows]
