"""A GPU cell from Run to its reply: commit, submit, take over the new version, say what happened (design §1, §3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.errors import Internal, LooseLeafError, Timeout, Unavailable
from looseleaf.ids import ExecutionId, new_execution_id
from looseleaf.kernel.before_cell import ready_for_gpu
from looseleaf.kernel.forwarder import RequestPublisher, error_output, error_reply, error_text, publish_output
from looseleaf.kernel.give_way import GaveWay
from looseleaf.kernel.gpu_cell import HOST_NEWS, NOT_STARTED, Ask, GpuCell, GpuCellResult
from looseleaf.kernel.main_thread import on_thread
from looseleaf.kernel.needs import WorkerNeed, names_to_commit
from looseleaf.kernel.router import CellRequest, route
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.wait_line import wait_told
from looseleaf.protocol.frames import Message
from looseleaf.protocol.threaded import ThreadedLink
from looseleaf.recipe.recipe import Recipe

log = logging.getLogger("looseleaf.kernel")

# After these nobody here knows whether the cell ran: the store's head tells.
LOST_REASONS: Final = frozenset(
    {"HOST_LOST", "PEER_CLOSED", "REQUEST_TIMEOUT", "EXECUTION_INDETERMINATE", "EXECUTION_ENDED", "LEASE_USED"}
)
RECONNECT_POLL_S: Final = 0.1
# A daemon that is away for so long while a cell runs is told of.
AWAY_TOLD_AFTER_S: Final = 2.0
AWAY: Final = (
    "LooseLeaf: this host's daemon has gone while the cell ran; the cell goes on with the next one, which is waited "
    "for, {seconds:g} s at most\n"
)


@dataclass(frozen=True)
class CellFrame:
    """What the kernel's shell adds to a cell: its number, its place for outputs, its way to ask, its context.

    `waits`: for a GPU; else it is not run if none is free at once. `tells_after_s`: a wait of so long is told there, 0
    for never. `note`: what is told there once the cell has begun.
    """

    count: int
    publisher: RequestPublisher
    ask: Ask | None
    context: dict[str, Any] = field(default_factory=dict)
    waits: bool = True
    tells_after_s: float = 0.0
    note: str = ""


@dataclass
class GpuRunOutcome:
    """`reply`: as the cell's execute_reply has it. `ran`: the cell may have run, so that it belongs to the log.

    `no_gpu_free`: it was not to wait; nothing was run or shown.
    """

    recipe: Recipe
    reply: dict[str, Any]
    ran: bool
    cell: GpuCellResult
    no_gpu_free: bool = False


class GpuRun:
    """Runs one GPU cell; used once, on the main thread but for `interrupt` and `take_event`."""

    def __init__(
        self, session: KernelSession, request: CellRequest, recipe: Recipe, frame: CellFrame, began_s: float
    ) -> None:
        self._session = session
        self._request = request
        self._recipe = recipe
        self._frame = frame
        self._began_s = began_s
        self._cell: GpuCell | None = None
        self._interrupted = False
        self._has_waited = False
        self._execution_id = ExecutionId("")
        self._need = WorkerNeed()
        # Resolved by the kernel once the cell's version is taken over: its own code may write state again.
        self.over: Future[None] = Future()

    @property
    def execution_id(self) -> ExecutionId:
        """Of its last submission; empty before the first."""
        return self._execution_id

    def end(self) -> None:
        """Resolves `over`."""
        if not self.over.done():
            self.over.set_result(None)

    def take_event(self, message: Message) -> bool:
        """One event of the daemon, on the link's reader thread; whether it is of this cell."""
        cell = self._cell
        return cell is not None and cell.take_event(message)

    def rest(self) -> list[Message]:
        """See GpuCell.rest."""
        return self._cell.rest() if self._cell is not None else []

    def send_comm(self, origin: str, message: Mapping[str, Any]) -> Future[bool]:
        """See GpuCell.send_comm."""
        if (cell := self._cell) is not None:
            return cell.send_comm(origin, message)
        future: Future[bool] = Future()
        future.set_result(False)
        return future

    def interrupt(self) -> None:
        """The person pressed stop; from any thread."""
        self._interrupted = True
        if (cell := self._cell) is not None:
            cell.interrupt()
        self._session.give_way.interrupted()

    async def run(self) -> GpuRunOutcome:
        """The outcome. Everything that a person must know of it was published; never raises a LooseLeafError."""
        frame = self._frame
        with wait_told(frame.publisher.line, self._began_s, frame.tells_after_s, self._news):
            return await self._run()

    def _news(self) -> dict[str, Any]:
        return self._cell.news if self._cell is not None else {}

    async def _run(self) -> GpuRunOutcome:
        try:
            result = await self._submit(await self._ready())
        except LooseLeafError as error:
            return self._not_run(error)
        except _Interrupted:
            return self._outcome(self._show("KeyboardInterrupt", "nothing was run"), ran=False)
        if result.error is None:
            return await self._saved(result)
        if result.error.reason == "INTERRUPTED":
            return self._outcome(self._show("KeyboardInterrupt", error_text(result.error)), ran=False)
        if _may_have_run(result.error, result):
            return await self._lost(result)
        if result.error.reason == "NO_GPU_FREE" and not self._frame.waits:
            return GpuRunOutcome(self._recipe, {}, False, GpuCellResult(), no_gpu_free=True)
        if result.error.reason == "UNSAVED_GONE":
            self._session.holders.gone(self._need.names, str(result.error.fields.get("why", "")))
        return self._not_run(result.error)

    async def _ready(self) -> ThreadedLink:
        """Everything that comes before the submission."""
        try:
            return await self._ready_once()
        except Unavailable as error:
            if error.reason != "PEER_CLOSED":
                raise
            # The daemon went since the last cell; another may be there already.
            return await self._ready_once()

    async def _ready_once(self) -> ThreadedLink:
        session = self._session
        link = await session.connected()
        self._commit()
        # Exact now: the commit has looked at every object.
        self._recipe = route(self._request, session.runs.executed, session.facts(), session.version)
        if session.manifest is not None and session.manifest.lacks_bytes_of(names_to_commit(self._recipe)):
            # It needs more than could be told before.
            self._commit()
        self._need = ready_for_gpu(session, self._recipe, self._request.source)
        await on_thread(session.frontend.send, link)
        return link

    def _commit(self) -> None:
        """Commits what the cell needs, if that is not committed yet."""
        session = self._session
        try:
            with session.give_way.breakable("interrupt"):
                if self._interrupted:
                    raise _Interrupted
                session.commit(names_to_commit(self._recipe))
        except GaveWay:
            raise _Interrupted from None

    async def _submit(self, link: ThreadedLink) -> GpuCellResult:
        result = await self._submit_once(link)
        if result.error is not None and result.error.reason == "SESSION_LOG_STALE":
            # The frontend lacks a part of the kernel's log; nothing was run.
            await on_thread(self._session.frontend.resend, link)
            result = await self._submit_once(link)
        if result.error is not None and result.error.reason == NOT_STARTED:
            # None of its statements has run, nor will: it is another execution that runs them. Once.
            result = await self._submit_once(await self._ready())
        return result

    async def _submit_once(self, link: ThreadedLink) -> GpuCellResult:
        session, frame, request = self._session, self._frame, self._request
        self._execution_id = new_execution_id()
        frame.publisher.known_as(self._execution_id)
        self._cell = GpuCell(
            link,
            {
                "execution_id": self._execution_id, "cell_id": request.cell_id, "source": request.source,
                "log_length": session.runs.length, "device_override": "gpu", "epoch": session.epoch,
                "version": session.version, "priority": request.priority, "execution_count": frame.count,
                "allow_stdin": frame.ask is not None, "elapsed_ms": (time.monotonic() - self._began_s) * 1000,
                "context": frame.context, "needed_worker": self._need.worker_id, "needed_names": list(self._need.names),
                "waits": frame.waits,
                **session.frontend.surroundings.tell(request.source),
            },
            frame.publisher,
            frame.ask,
            frame.note,
            self._rejoin,
        )  # fmt: skip
        # Looked at after the cell can be told: an interrupt that comes between reaches one of both.
        if self._interrupted:
            raise _Interrupted
        session.running = self._execution_id
        try:
            return await self._cell.run()
        finally:
            session.running = ""

    async def _rejoin(self, error: LooseLeafError) -> ThreadedLink:
        """The connection to the daemon that comes in the lost one's place; raises `error` if none does in time."""
        patience_s, began_s, told = self._session.config.recover_timeout_s, time.monotonic(), False
        while True:
            try:
                return await self._session.connected()
            except LooseLeafError as failed:
                # Whatever keeps this kernel out, the cell may have run.
                hopeless = not isinstance(failed, (Unavailable, Timeout))
                away_s = time.monotonic() - began_s
                if hopeless or away_s >= patience_s or self._impatient:
                    # Who asks next what became of the cell has waited long enough.
                    self._has_waited = True
                    raise error from failed
            if away_s >= AWAY_TOLD_AFTER_S and not told:
                told = True
                text = AWAY.format(seconds=patience_s)
                publish_output(self._frame.publisher, {"type": "stream", "name": "stderr", "text": text})
            await asyncio.sleep(RECONNECT_POLL_S)

    @property
    def _impatient(self) -> bool:
        return self._has_waited or (self._cell is not None and self._cell.impatient)

    async def _saved(self, result: GpuCellResult) -> GpuRunOutcome:
        """The cell ended and its save was answered, well or not."""
        saved = result.saved or {}
        reply = result.reply or self._show("BUG", "the cell ended without a reply")
        if saved.get("error_reason") == "UNSAVED_GONE":
            # The worker went between the lease and the cell, which nobody was given: there is nothing to fence.
            self._session.holders.gone(self._need.names, "")
            return self._outcome(reply, ran=False, result=result)
        if saved.get("error_reason"):
            try:
                await self._session.fence()
            except LooseLeafError as error:
                log.warning("fence_failed %s", error)
            if saved.get("version") != self._session.version and self._finished:
                # The daemon ended its worker before the store had answered.
                note = "this cell was ended while it was being saved; its changes are here\n"
                return self._finished_after_all(note, reply, result)
            # The daemon has said so itself if the cell had not ended by then.
            if reply.get("ename") != saved["error_reason"]:
                reply = self._show(str(saved["error_reason"]), str(saved.get("error_message", "")))
            return self._outcome(reply, ran=True, result=result)
        try:
            self._session.take_version(int(saved["version"]))
            if (manifest := self._session.manifest) is not None:
                self._session.holders.ran(saved, manifest, self._session.epoch, time.time())
                self._session.holders.follow(manifest)
            self._tell_notes()
        except LooseLeafError as error:
            text = f"the cell ended and was saved, but its results could not be fetched yet: {error_text(error)}"
            reply = self._show(error.reason, text)
        return self._outcome(reply, ran=True, result=result)

    def _tell_notes(self) -> None:
        if note := self._session.take_notes():
            publish_output(self._frame.publisher, {"type": "stream", "name": "stderr", "text": note})

    async def _lost(self, result: GpuCellResult) -> GpuRunOutcome:
        """Whether the cell ended is asked of the store, by way of a daemon that may just be starting again."""
        assert result.error is not None
        session = self._session
        before = session.version
        try:
            await self._fence_with_patience()
        except LooseLeafError as error:
            text = (
                f"{_sentence(result.error)} Whether this cell finished is known when the cluster is back; until then "
                f"the variables are those before it, and CPU cells go on. {error_text(error)}"
            )
            return self._outcome(self._show_error(Unavailable("CLUSTER_LOST", text)), ran=True, result=result)
        if session.version != before and self._finished:
            note = "the connection was lost while this cell ran; it finished and its changes are here\n"
            return self._finished_after_all(note, result.reply or {"status": "ok"}, result)
        what = "This cell's changes are lost"
        if result.error.reason == "PEER_CLOSED" and not HOST_NEWS & result.news.keys():
            # That a GPU was given it in the last moment cannot be ruled out; nothing of it will be saved then.
            what = "As far as the daemon had told, this cell had no GPU yet and nothing of it has run"
        valid = f"the variables are those of version {session.version}; run the cell again"
        text = f"{_sentence(result.error)} {what}, {valid}"
        return self._outcome(self._show_error(Unavailable("CELL_LOST", text)), ran=True, result=result)

    @property
    def _finished(self) -> bool:
        """The session's version is the one that this cell made."""
        manifest = self._session.manifest
        return manifest is not None and manifest.execution_id == self._execution_id

    def _finished_after_all(self, note: str, reply: dict[str, Any], result: GpuCellResult) -> GpuRunOutcome:
        """Outputs of the last moments may be missing, the state is not: no reason to stop the notebook."""
        publish_output(self._frame.publisher, {"type": "stream", "name": "stderr", "text": note})
        return self._outcome(reply, ran=True, result=result)

    async def _fence_with_patience(self) -> None:
        """`session.fence`, tried again for `recover_timeout_s` while there is no daemon."""
        limit_s = time.monotonic() + self._session.config.recover_timeout_s
        while True:
            try:
                await self._session.fence()
                return
            except (Unavailable, Timeout):
                if time.monotonic() >= limit_s or self._impatient:
                    raise
            await asyncio.sleep(RECONNECT_POLL_S)

    def _not_run(self, error: LooseLeafError) -> GpuRunOutcome:
        return self._outcome(self._show_error(error), ran=False)

    def _show_error(self, error: LooseLeafError) -> dict[str, Any]:
        return self._show(error.reason, error_text(error))

    def _show(self, ename: str, text: str) -> dict[str, Any]:
        output = error_output(ename, text)
        publish_output(self._frame.publisher, output)
        return error_reply(output)

    def _outcome(self, reply: dict[str, Any], *, ran: bool, result: GpuCellResult | None = None) -> GpuRunOutcome:
        return GpuRunOutcome(self._recipe, reply, ran, result or GpuCellResult())


def _may_have_run(error: LooseLeafError, result: GpuCellResult) -> bool:
    # Once a GPU was given, a fault between here and the worker says nothing about the cell.
    granted = "lease" in result.news
    return error.reason in LOST_REASONS or (granted and isinstance(error, (Internal, Timeout, Unavailable)))


def _sentence(error: LooseLeafError) -> str:
    return error_text(error).rstrip(".") + "."


class _Interrupted(Exception):
    """The person pressed stop before anything was submitted."""
