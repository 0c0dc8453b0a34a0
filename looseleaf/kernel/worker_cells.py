"""The kernel's part in a cell that runs on a worker: what it is told, and what becomes of the cell here (design §3)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from looseleaf.kernel.breakpoints import breakpoints_note
from looseleaf.kernel.cell import Cell
from looseleaf.kernel.forwarder import Publishers
from looseleaf.kernel.gpu_run import CellFrame, GpuRun, GpuRunOutcome
from looseleaf.kernel.gpu_state import GpuState
from looseleaf.kernel.history_magics import refuse_on_worker
from looseleaf.kernel.interrupts import interrupts_call
from looseleaf.kernel.label_log import LabelLog, observed_there
from looseleaf.kernel.left_notes import LeftNotes
from looseleaf.kernel.messages import flush_streams
from looseleaf.kernel.outputs import ResultCache
from looseleaf.kernel.pages import Pages
from looseleaf.kernel.post_mortem import PostMortem
from looseleaf.kernel.replies import CellReplies
from looseleaf.kernel.report import cell_report
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.sources import cell_sources, name_cell
from looseleaf.kernel.stdin import ask_person
from looseleaf.kernel.usage import GpuUsage
from looseleaf.worker.thread_counts import thread_count_here


class WorkerCells:
    """Part of the kernel, which makes everything that is named here. Before ipykernel's class among its bases."""

    shell: Any
    session: Any
    stdin_socket: Any
    get_parent: Any
    looseleaf: KernelSession
    _get_shell_context_var: Any
    _shell_parent_ident: Any
    _keep_report: Any
    _run: GpuRun | None
    _results: ResultCache
    _publishers: Publishers
    _left: LeftNotes
    _pages: Pages
    _usage: GpuUsage
    _post_mortem: PostMortem
    _labels: LabelLog
    _replies: CellReplies

    async def _run_on_worker(self, cell: Cell, *, waits: bool = True) -> dict[str, Any] | None:
        """The reply; None if the cell was not to wait for a GPU and none was free: nothing was run or shown."""
        request = cell.request
        refuse_on_worker(request.source)
        caches = self._results.tell()
        self._results.refuse_elsewhere(request.source, caches)
        count: int = self.shell.execution_count
        parent, ident = self.get_parent("shell"), self._get_shell_context_var(self._shell_parent_ident)

        async def ask(prompt: str, password: bool) -> str:
            return await ask_person(self.session, self.stdin_socket, ident, parent, prompt, password)

        cell_file = name_cell(self.shell, request.source, count)
        context = {
            "columns": shutil.get_terminal_size().columns, "cell_file": cell_file,
            "sources": cell_sources(self.shell), "ast_node_interactivity": self.shell.ast_node_interactivity,
            "threads": thread_count_here(), "request": parent["header"]["msg_id"],
            "keep_s": self.looseleaf.keep_s(request.keep_s), **caches,
        }  # fmt: skip
        frame = CellFrame(
            count, self._publishers.request(parent), ask if cell.allow_stdin else None, context, waits,
            tells_after_s=self._tells_wait_after_s(cell),
            note=breakpoints_note(getattr(self, "debugger", None), cell_file),
        )  # fmt: skip
        flush_streams()
        # Of a cell that was taken for one of the CPU, the recipe for a worker.
        asked = replace(request, device_override="gpu") if cell.used else request
        run = GpuRun(self.looseleaf, asked, cell.recipe, frame, cell.began_s)
        self._left.release(self.looseleaf.send)
        self._pages.note(GpuState.run_began, request.cell_id)
        try:
            with interrupts_call(run.interrupt, self.looseleaf.give_way.interrupted):
                try:
                    self._run = run
                    outcome = await run.run()
                    self._pages.note(GpuState.run_ended, outcome.reply)
                    # While the run still takes its events: none may overtake those that wait in it.
                    self._left.cell_ended(run.execution_id, outcome.cell.saved or {}, run.rest)
                finally:
                    self._run = None
                self._results.take(caches, outcome.reply.get("results"))
                return None if outcome.no_gpu_free else self._end_gpu_cell(cell, outcome, count)
        finally:
            self._pages.note(GpuState.run_ended, {})
            run.end()

    def _tells_wait_after_s(self, cell: Cell) -> float:
        """0 where a page of ours shows it, or no page shows the line."""
        for_page = bool(cell.request.cell_id) and cell.request.priority == "interactive"
        return self.looseleaf.config.wait_line_after_s if for_page and not self._pages.known else 0.0

    def _end_gpu_cell(self, cell: Cell, outcome: GpuRunOutcome, count: int) -> dict[str, Any]:
        session, request, reply = self.looseleaf, cell.request, outcome.reply
        recipe = outcome.recipe
        if cell.used:
            text = f"It ran on the CPU first, used a GPU there ({cell.used}) and was run again on one."
            recipe = replace(recipe, reason=text, confidence=cell.recipe.confidence)
        ok = reply.get("status") == "ok"
        self._usage.ran(outcome.cell.saved)
        if not ok:
            shown = [str(line) for line in reply.get("traceback", ())]
            self._post_mortem.failed_elsewhere(count, str(reply.get("ename")), str(reply.get("evalue")), shown)
        if outcome.ran:
            seen = observed_there(cell.recipe, outcome.cell.saved, ok=ok)
            session.runs.add(request.cell_id, request.source, ok, seen)
            session.runs.saved(session.version)
            ran = "cpu, then gpu" if cell.used else "gpu"
            self._labels.add(count, request.source, cell.recipe, ran, seen, cell.used)
        self._keep_report(cell_report(
            recipe, path="", run_s=0.0, version=session.version, reply=reply, saved=outcome.cell.saved,
            news=outcome.cell.news, used=cell.used))  # fmt: skip
        return self._replies.finished(request.source, count, reply, cell.user_expressions)
