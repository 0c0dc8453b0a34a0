"""What comes while a cell runs: edit signals, which publish no status, and interrupts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.gpu_run import GpuRun
from looseleaf.kernel.messages import message_type_of
from looseleaf.kernel.preparations import PREPARE_REPLY, PREPARE_REQUEST, join_first

log = logging.getLogger("looseleaf.kernel")


class ControlChannel:
    """Part of the kernel: its control channel. Before ipykernel's class among its bases."""

    looseleaf: Any
    session: Any
    control_stream: Any
    io_loop: Any
    _idle_commits: Any
    _preparations: Any
    _busy: bool
    _run: GpuRun | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._edits: set[asyncio.Task[None]] = set()

    async def dispatch_control(self, msg: Any) -> None:
        """Edit signals wait for nothing and nothing waits for them: an interrupt must not stand behind a preparation.

        They also publish no status: a running GPU cell must stay `busy` for cullers while the person types.
        """
        idents, parts = self.session.feed_identities(msg, copy=False)
        if message_type_of(parts) != PREPARE_REQUEST:
            await super().dispatch_control(msg)  # type: ignore[misc]
            return
        try:
            request = self.session.deserialize(parts, content=True, copy=False)
        except ValueError as error:
            log.warning("control_message_refused %s", error)
            return
        task = asyncio.create_task(self._answer_prepare(idents, request))
        self._edits.add(task)
        task.add_done_callback(self._edits.discard)

    async def _before_preparation(self, content: Mapping[str, Any]) -> None:
        if not (self.looseleaf.joined or self._busy):
            await join_first(self._join, self.io_loop.asyncio_loop)
        await self._idle_commits.before_preparation(content)

    async def _join(self) -> None:
        if not self._busy:
            with suppress(LooseLeafError):
                await self.looseleaf.open_aside(insist=False)
        # A cell that came meanwhile joins by itself.
        if not self._busy:
            self.looseleaf.try_connect()

    async def _answer_prepare(self, idents: Any, request: Any) -> None:
        content = await self._preparations.answer(request["content"])
        self.session.send(self.control_stream, PREPARE_REPLY, content, request, ident=idents)

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Interrupts the worker's cell if one is awaited, else this process as usual."""
        if (run := self._run) is None:
            await super().interrupt_request(stream, ident, parent)  # type: ignore[misc]
            return
        run.interrupt()
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)
