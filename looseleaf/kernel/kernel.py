"""LooseLeafKernel: CPU cells as in any IPython kernel, GPU cells on a leased worker (design §1, §9)."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from ipykernel.ipkernel import IPythonKernel

import looseleaf
from looseleaf.checkpoint.names import HiddenNames
from looseleaf.devices import hide_in_shell
from looseleaf.errors import LooseLeafError, PreconditionFailed
from looseleaf.kernel import effects
from looseleaf.kernel.before_cell import has_moved, ready_for_cpu
from looseleaf.kernel.cell import Cell
from looseleaf.kernel.collector import collector_held
from looseleaf.kernel.comm_traffic import CommPlaces, CommTraffic
from looseleaf.kernel.comms import WorkerComms
from looseleaf.kernel.control_channel import ControlChannel
from looseleaf.kernel.forwarder import COMM_TYPES, Publishers, error_text, publish_output
from looseleaf.kernel.gpu_run import GpuRun
from looseleaf.kernel.history_magics import refuse_on_worker, register_history_magics
from looseleaf.kernel.idle_commits import IdleCommits
from looseleaf.kernel.interrupts import RequestInterrupts, interrupts_held
from looseleaf.kernel.journal import OutputJournal
from looseleaf.kernel.journal_files import journal_root
from looseleaf.kernel.label_log import LabelLog, observed_here
from looseleaf.kernel.left_notes import LeftNotes
from looseleaf.kernel.logs import log_to_file
from looseleaf.kernel.main_thread import call_on
from looseleaf.kernel.messages import flush_streams, message_type_of
from looseleaf.kernel.outgoing import watch_outgoing
from looseleaf.kernel.outputs import ResultCache
from looseleaf.kernel.pages import Pages
from looseleaf.kernel.passing_line import ShownOutputs
from looseleaf.kernel.post_mortem import PostMortem
from looseleaf.kernel.predictions import Predictions
from looseleaf.kernel.preparations import Preparations
from looseleaf.kernel.replies import CellReplies
from looseleaf.kernel.report import cell_report
from looseleaf.kernel.request_frame import RequestFrame
from looseleaf.kernel.router import CellRequest, route
from looseleaf.kernel.save_points import SavePoints
from looseleaf.kernel.session import KernelSession, load_config
from looseleaf.kernel.time_travel import TimeTravel
from looseleaf.kernel.title import notebook_of
from looseleaf.kernel.trial import Trial, waits_for_gpu
from looseleaf.kernel.usage import GpuUsage
from looseleaf.kernel.views import Views, view_if, without_views
from looseleaf.kernel.worker_cells import WorkerCells
from looseleaf.recipe.label import DeviceLabel
from looseleaf.recipe.recipe import Recipe
from looseleaf.worker.device_magics import register_device_magics

log = logging.getLogger("looseleaf.kernel")

# jupyter_client waits 5 s for a kernel to end before it kills it.
COMMIT_AT_SHUTDOWN_S: Final = 3.5

# Its own annotations leave most of it optional or untyped.
_Base: Any = IPythonKernel


class LooseLeafKernel(Views, ControlChannel, RequestFrame, WorkerCells, _Base):  # type: ignore[misc]
    """An IPython kernel that lends itself a GPU for the length of one cell."""

    implementation = "looseleaf"
    implementation_version = looseleaf.__version__

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        config, problem = load_config()
        register_device_magics(self.shell)
        hide_in_shell(self.shell)
        hidden = HiddenNames(self.shell)
        self.looseleaf = KernelSession(self.shell.user_ns, hidden, config, problem)
        # The cell that runs elsewhere.
        self._run: GpuRun | None = None
        log_to_file(config, self._log_ids)
        self.looseleaf.listen(self._take_event)
        self._journal = OutputJournal(
            journal_root(config.run_dir), lambda: self.looseleaf.title, config.journal_bytes_max
        )
        self._usage = GpuUsage(self.looseleaf)
        shown = ShownOutputs()
        watch_outgoing(self.session, self._journal.take, self._usage.add, shown.take)
        self._post_mortem = PostMortem(self.shell)
        travel = TimeTravel(self.looseleaf, hidden, lambda: self._run is not None)
        self._labels = LabelLog()
        SavePoints(self.looseleaf, travel, self.shell, lambda: self._busy or self._run is not None).register(self)
        register_history_magics(self.shell, self.looseleaf, travel, self._running_source, self._labels)
        # A cell of the main shell runs, here or elsewhere.
        self._busy = False
        self._idle_commits = IdleCommits(
            self.looseleaf, lambda: self._busy, lambda source: self._route(CellRequest.of(source, None, None))
        )
        self._interrupts = RequestInterrupts()
        self._pages = Pages(
            lambda page, state: self.publish_under({}, "comm_msg", {"comm_id": page, "data": state}, {}, [])
        )
        self._preparations = Preparations(self.looseleaf.prepare, self._before_preparation, self._pages)
        self._predictions = Predictions(
            config, self._preparations, lambda: self.control_thread.io_loop.asyncio_loop,
            lambda: notebook_of(os.environ, self.shell.user_ns),
        )  # fmt: skip
        self._results = ResultCache(self.shell)
        self._replies = CellReplies(self.shell, self)
        self.looseleaf.rebinding = self._results.following
        comms = WorkerComms(self.comm_manager, self.publish)
        self._publishers = Publishers(self.publish_under, comms.follow, lambda: self._newest, shown)
        self._left = LeftNotes(self._publishers)
        places = CommPlaces(
            self.looseleaf, comms, self._publishers, lambda: self._run,
            lambda status, message: self._publish_status(status, "shell", message), self._idle_commits.on_main,
            self._idle_commits.notice_change,
        )  # fmt: skip
        self._traffic = CommTraffic(places)
        for message_type in sorted(COMM_TYPES):
            self.shell_handlers[message_type] = self._traffic.handler(message_type, self.shell_handlers[message_type])

    # -- running cells ---------------------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """As ipykernel's; there an interrupt just before or after the cell leaves the request unanswered."""
        with self._interrupts.kept():
            await super().execute_request(stream, ident, parent)

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        """Runs one cell here or on a worker.

        Silent requests (variable views), requests outside the history and those of subshells always run here.
        """

        async def run_here() -> dict[str, Any]:
            reply: dict[str, Any] = await super(LooseLeafKernel, self).do_execute(
                code, silent, store_history, user_expressions, allow_stdin, cell_meta=cell_meta, cell_id=cell_id
            )
            return reply

        if silent or not store_history or threading.current_thread() is not threading.main_thread():
            return await self._run_aside(run_here, looks=silent or not store_history)
        request_id = self.get_parent("shell")["header"]["msg_id"]
        count: int = self.shell.execution_count
        self._journal.begin(
            self.looseleaf.session_id, request_id, count=count, cell_id=cell_id or "", source=code
        )
        self._predictions.cell_arrived()
        reply = await self._run_cell(CellRequest.of(code, cell_id, cell_meta), run_here, user_expressions, allow_stdin)
        end = functools.partial(self._journal.end, request_id, str(reply.get("status", "")))
        if self.shell.exit_now:
            end()
        else:
            # The reply goes first.
            asyncio.get_running_loop().call_soon(end)
        self._predictions.cell_ended(cell_id or "", code, ok=reply.get("status") == "ok")
        return reply

    async def _run_cell(
        self, request: CellRequest, run_here: Callable[[], Any], user_expressions: Any, allow_stdin: bool
    ) -> dict[str, Any]:
        code = request.source
        self._idle_commits.cell_arrived()
        self._busy = True
        try:
            with self._interrupts.raised():
                return await self._run_somewhere(request, run_here, user_expressions, allow_stdin)
        except LooseLeafError as error:
            return self._replies.refused(code, error.reason, error_text(error))
        except KeyboardInterrupt:
            return self._replies.refused(code, "KeyboardInterrupt", "the cell was interrupted before it ran")
        except Exception as error:
            # Without a reply the front end would wait for ever.
            log.exception("cell_failed")
            text = f"a fault in LooseLeaf ({type(error).__name__}: {error}); the kernel's log tells where"
            return self._replies.refused(code, "BUG", text)
        finally:
            self._busy = False
            self._idle_commits.cell_ended()
            # The reply goes first: until it is sent nothing here waits for the loop.
            asyncio.get_running_loop().call_soon(self._follow_runs)

    def _follow_runs(self) -> None:
        try:
            _ = self.looseleaf.runs.executed
        except Exception:
            # On the event loop nobody else would see it, and the notebook must not.
            log.exception("run_not_followed")

    async def _run_aside(self, run_here: Callable[[], Awaitable[dict[str, Any]]], *, looks: bool) -> dict[str, Any]:
        """A request that is no cell of the notebook: it is not routed, but may change state.

        `looks`: it is a front end's, to show variables.
        """
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread:
            self._busy = True
        try:
            with self._interrupts.raised(), view_if(looks):
                return await run_here()
        finally:
            if on_main_thread:
                self._busy = False
            self._idle_commits.notice_change()

    async def _run_somewhere(
        self, request: CellRequest, run_here: Callable[[], Any], user_expressions: Any, allow_stdin: bool
    ) -> dict[str, Any]:
        began_s = time.monotonic()
        # Looking at variables needs none of their values.
        rest = replace(request, source=without_views(request.source))
        recipe = self._route(rest)
        if recipe.label == "gpu" and rest != request:
            recipe = self._route(request)
        if note := self.looseleaf.take_notes():
            publish_output(self, {"type": "stream", "name": "stderr", "text": note})
        cell = Cell(request, recipe, rest.source, user_expressions, allow_stdin, began_s)
        if recipe.label == "gpu":
            waits = waits_for_gpu(recipe, request.source, sys.modules)
            if (reply := await self._run_on_worker(cell, waits=waits)) is not None:
                return reply
        reply = await self._run_cpu_cell(cell, run_here)
        return reply if reply is not None else await self._run_on_worker(cell) or {}

    def _route(self, request: CellRequest) -> Recipe:
        session = self.looseleaf
        session.try_connect()
        try:
            recipe = self._derive(request)
            if has_moved(session, recipe.names):
                session.commit(())
                recipe = self._derive(request)
            return recipe
        except LooseLeafError:
            raise
        except Exception:
            # A fault of ours must not keep a person from running cells.
            log.exception("recipe_failed")
            return Recipe(cell_id=request.cell_id, reason="Its text could not be analysed.")

    def _derive(self, request: CellRequest) -> Recipe:
        session = self.looseleaf
        with collector_held():
            return route(request, session.runs.executed, session.facts(), session.version)

    async def _run_cpu_cell(self, cell: Cell, run_here: Callable[[], Any]) -> dict[str, Any] | None:
        """The reply; None if the cell must go to a worker, as nothing was run."""
        session, recipe = self.looseleaf, cell.recipe
        trial = Trial(session, self.shell, self.comm_manager, recipe)
        if recipe.label == "gpu" and not trial.raises:
            return None
        try:
            ready_for_cpu(session, recipe, cell.rest)
        except PreconditionFailed as error:
            if error.reason != "CUDA_IN_CPU_CELL" or recipe.confidence >= 1.0:
                raise
            return None
        session.threads.before_cell()
        count: int = self.shell.execution_count
        began_s = time.monotonic()
        reply = await trial.run(run_here)
        with interrupts_held() as interrupted:
            run_s = time.monotonic() - began_s
            session.threads.after_cell()
            if trial.used and recipe.confidence < 1.0:
                if trial.raises and not (why := trial.take_back(reply, lambda: self._refuse_elsewhere(cell))):
                    cell = replace(cell, used=trial.used)
                    self._replies.taken_back = trial.undo
                else:
                    reply = self._replies.not_again(reply, trial.refusal(why if trial.raises else "", reply))
            if not cell.used:
                self._end_cpu_cell(cell, count, reply, run_s, trial.used)
        if not cell.used:
            return reply
        log.info("cell_runs_again cell=%s", cell.request.cell_id)
        flush_streams()
        publish_output(self._publishers.request(self.get_parent("shell")), {"type": "clear_output", "wait": False})
        if interrupted():
            raise KeyboardInterrupt
        return await self._run_on_worker(cell)

    def _refuse_elsewhere(self, cell: Cell) -> None:
        refuse_on_worker(cell.request.source)
        self._results.refuse_elsewhere(cell.request.source, self._results.tell())

    def _end_cpu_cell(self, cell: Cell, count: int, reply: dict[str, Any], run_s: float, used: str) -> None:
        session, request, ok = self.looseleaf, cell.request, reply["status"] == "ok"
        seen = observed_here(cell.recipe, used, run_s, ok=ok)
        session.runs.add(request.cell_id, request.source, ok, seen)
        self._labels.add(count, request.source, cell.recipe, "cpu", seen, used if cell.recipe.confidence < 1.0 else "")
        recipe = replace(cell.recipe, label=DeviceLabel.CPU)
        self._keep_report(cell_report(recipe, path="cpu", run_s=run_s, version=session.version, reply=reply))
        session.changed()
        if self.shell.exit_now:
            session.close()

    def raw_input(self, prompt: Any = "") -> Any:
        """As ipykernel's; a cell that has asked the person is not run again."""
        effects.note("asked a question")
        return super().raw_input(prompt)

    def getpass(self, *args: Any, **kwargs: Any) -> Any:
        """As `raw_input`."""
        effects.note("asked a question")
        return super().getpass(*args, **kwargs)

    def _log_ids(self) -> dict[str, str]:
        run = self._run
        return {"session": self.looseleaf.session_id, "execution": run.execution_id if run is not None else ""}

    def _running_source(self) -> str:
        return str(self.get_parent("shell").get("content", {}).get("code", ""))

    def _take_event(self, message: dict[str, Any]) -> None:
        self._pages.take_event(message)
        run = self._run
        if run is None or not run.take_event(message):
            self._left.take(message)

    # -- the end ---------------------------------------------------------------------------------------

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Commits what is left, within `COMMIT_AT_SHUTDOWN_S`, before the process ends. On the control thread."""
        loop = self._idle_commits.loop
        if loop is not None and loop.is_running() and loop is not asyncio.get_running_loop():
            try:
                await asyncio.wait_for(asyncio.wrap_future(call_on(loop, self._close_session)), COMMIT_AT_SHUTDOWN_S)
            except TimeoutError:
                log.warning("last_commit_timed_out")
        reply: dict[str, Any] = super().do_shutdown(restart)
        return reply

    def _close_session(self) -> None:
        self._predictions.stop()
        self._idle_commits.cancel()
        if self._run is None:
            self.looseleaf.close()

    async def shell_channel_thread_main(self, msg: Any) -> None:
        """On the thread that receives: a commit that nobody waits for gives way to a cell."""
        _idents, parts = self.session.feed_identities(msg, copy=False)
        if message_type_of(parts) == "execute_request":
            self.looseleaf.give_way.arrived()
        await super().shell_channel_thread_main(msg)
