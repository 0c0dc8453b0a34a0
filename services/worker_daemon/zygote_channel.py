"""The daemon's end of one zygote's control channel: datagrams in order, nothing blocks (docs/protocol.md)."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from typing import Any

import structlog

from looseleaf.errors import InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.protocol import fields
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.frames import PROTOCOL_VERSION, close_fds

log = structlog.get_logger()

Message = dict[str, Any]

# Of the zygote's `READY` and of an `ERR` that answers no request.
NO_REQUEST = 0


class ZygoteChannel:
    """Requests to a zygote and their answers by id. Owns `sock`; ends by itself when the zygote closes its end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._control = ControlSocket(sock)
        self._loop = asyncio.get_running_loop()
        # The future of id `NO_REQUEST` is that of `READY`.
        self._answers: dict[int, asyncio.Future[Message]] = {NO_REQUEST: self._loop.create_future()}
        self._next_id = 1
        self._closed = False
        # A zygote answers one request at a time; what waits for its turn has not been sent.
        self._turn = asyncio.Lock()
        # The import that it is at, before it is ready: what is late or ends then does so at this one. Since when.
        self.importing = ""
        self._importing_since_s = 0.0
        self._loop.add_reader(sock, self._read)

    @property
    def closed(self) -> bool:
        """No zygote answers here any more."""
        return self._closed

    async def ready(self, timeout_s: float, import_timeout_s: float = math.inf) -> Message:
        """The zygote's `READY`, which may take so long, and each import before it so long.

        Raises Unavailable `ZYGOTE_FAILED`, Timeout `ZYGOTE_TIMEOUT`; in both `name` is the import that it was at, empty
        if it was at none.
        """
        answer, limit_s = self._answers[NO_REQUEST], self._loop.time() + timeout_s
        while not answer.done():
            import_limit_s = self._importing_since_s + import_timeout_s if self.importing else math.inf
            left_s = min(limit_s, import_limit_s) - self._loop.time()
            if left_s <= 0:
                break
            # An import that has begun meanwhile has its own limit.
            await asyncio.wait({answer}, timeout=min(left_s, import_timeout_s))
        return await self._answer(NO_REQUEST, 0.0, timeout_s if self._loop.time() >= limit_s else import_timeout_s)

    @property
    def busy(self) -> bool:
        """A request is under way."""
        return self._turn.locked()

    async def fork(self, body: Message, fds: Sequence[int], timeout_s: float) -> int:
        """The pid of a new process with `fds`, which stay the caller's. The time counts from its turn on.

        Raises Unavailable `FORK_FAILED` or `ZYGOTE_FAILED`, Timeout `ZYGOTE_TIMEOUT`.
        """
        answer = await self._request({"t": "FORK", "v": PROTOCOL_VERSION, **body}, fds, timeout_s)
        return fields.integer(answer, "pid", minimum=1)

    async def pss_bytes(self, timeout_s: float) -> int:
        """Memory of the zygote, each shared page by its share. Raises as `fork`."""
        return fields.integer(await self._request({"t": "STAT"}, (), timeout_s), "pss_bytes", 0)

    async def _request(self, body: Message, fds: Sequence[int], timeout_s: float) -> Message:
        async with self._turn:
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._answers[request_id] = self._loop.create_future()
            try:
                self._control.send({**body, "id": request_id}, fds)
            except (OSError, LooseLeafError) as error:
                del self._answers[request_id]
                raise Unavailable("ZYGOTE_FAILED", f"no worker could be asked for: {error}") from error
            return await self._answer(request_id, timeout_s)

    async def _answer(self, request_id: int, timeout_s: float, waited_s: float = 0.0) -> Message:
        try:
            return await asyncio.wait_for(self._answers[request_id], timeout_s)
        except TimeoutError:
            text = f"the process that workers are forked from did not answer in {waited_s or timeout_s:g} s"
            raise Timeout("ZYGOTE_TIMEOUT", text + self._where(), name=self.importing) from None
        finally:
            self._answers.pop(request_id, None)

    def _where(self) -> str:
        return f"; it was importing {self.importing}" if self.importing else ""

    def _read(self) -> None:
        while not self._closed:
            try:
                message, received = self._control.recv()
            except BlockingIOError:
                return
            except InvalidArgument as error:
                log.error("zygote_datagram_dropped", reason=error.reason)
                continue
            except (OSError, Unavailable):
                self.close()
                return
            close_fds(received)
            self._take(message)

    def _take(self, message: Message) -> None:
        if message["t"] == "IMPORTING":
            self.importing, self._importing_since_s = str(message.get("name", "")), self._loop.time()
            return
        if message["t"] == "READY":
            self.importing = ""
        request_id = message.get("id", NO_REQUEST)
        answer = self._answers.get(request_id) if type(request_id) is int else None
        if answer is None or answer.done():
            log.info("zygote_answer_unexpected", kind=message["t"])
        elif message["t"] == "ERR":
            answer.set_exception(_refused(request_id, message))
        elif message["t"] in ("READY", "FORKED", "STAT"):
            answer.set_result(message)

    def close(self) -> None:
        """Ends it, and with it the zygote; whoever waits gets `ZYGOTE_FAILED`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for answer in self._answers.values():
            if not answer.done():
                text = "the process that workers are forked from ended"
                answer.set_exception(Unavailable("ZYGOTE_FAILED", text + self._where(), name=self.importing))
                answer.exception()  # read it: nobody may be waiting


def _refused(request_id: int, message: Message) -> LooseLeafError:
    if request_id == NO_REQUEST:
        text = f"the process that workers are forked from cannot serve: {message.get('text')}"
        told = {name: str(message.get(name, "")) for name in ("verdict", "culprit")}
        return Unavailable("ZYGOTE_FAILED", text, **told)
    text = f"no worker could be forked: {message.get('text')}; nothing was run, run the cell again"
    return Unavailable("FORK_FAILED", text, errno=message.get("errno"))
