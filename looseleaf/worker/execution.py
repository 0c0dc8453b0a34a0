"""Runs one cell in a worker as ipykernel runs it in an ordinary kernel: inside an event loop, once, to a reply."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from typing import Any, Final

from IPython.core.async_helpers import _pseudo_sync_runner
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult

from looseleaf.worker.gpu_memory_note import is_out_of_memory, memory_note
from looseleaf.worker.interrupts import interrupts_cancel, run_interruptible
from looseleaf.worker.origin import ORIGIN
from looseleaf.worker.result_cache import tell_results
from looseleaf.worker.shell import WorkerShell, cut

log = logging.getLogger("looseleaf.worker")

# How long an interrupted cell that awaits may go on with its own `except` and `finally`.
ABANDON_LIMIT_S: Final = 1.0
ABANDON_TRIES_MAX: Final = 8


class CellRunner:
    """Runs cells of `shell` on one event loop that lives as long as the worker; made after the fork."""

    def __init__(self, shell: WorkerShell) -> None:
        self._shell = shell
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        # All cells run in one, as in an ordinary kernel: what one sets in a context variable, such as numpy's print
        # options or a decimal precision, stands in the next.
        self.context = contextvars.copy_context()

    def run(self, source: str, execution_count: int, cell_id: str | None) -> dict[str, Any]:
        """Runs the cell and returns the content of its execute_reply; never raises.

        Outputs and the error message have been published by then. SIGINT is a KeyboardInterrupt in the cell.
        """
        shell = self._shell
        shell.execution_count = execution_count
        shell.last_traceback = None
        shell.failed_while_displaying = False
        replies: list[dict[str, Any]] = []
        self.context.run(ORIGIN.set, ORIGIN.get())
        task = self.loop.create_task(self._run(source, cell_id), context=self.context)

        def cell() -> None:
            result = self.loop.run_until_complete(task)
            replies.append(self._reply(result, execution_count))

        try:
            run_interruptible(cell)
        except BaseException as error:
            # Only an interrupt at the edge of the cell comes here, or a fault of a library's event hook.
            if not replies:
                self._abandon(task)
                replies.append(self._reply_after(error, task, execution_count))
        return replies[0]

    def _abandon(self, task: asyncio.Task[ExecutionResult]) -> None:
        """Takes the cell off the loop, where it would go on, or even begin, in the middle of the next one."""
        task.cancel()
        waiting = self.loop.create_task(asyncio.wait([task], timeout=ABANDON_LIMIT_S))
        for _try in range(ABANDON_TRIES_MAX):
            try:
                self.loop.run_until_complete(waiting)
                return
            except BaseException as error:
                # The run that was left may have had its stop on the way: it stops this one.
                log.info("abandon_left kind=%s", type(error).__name__)

    def _reply_after(
        self, error: BaseException, task: asyncio.Task[ExecutionResult], execution_count: int
    ) -> dict[str, Any]:
        """The reply of a cell whose run was left with `error`: its own if it had ended by then."""
        if task.done() and not task.cancelled() and task.exception() is None:
            return self._reply(task.result(), execution_count)
        return self._failed(error, execution_count)

    async def _run(self, source: str, cell_id: str | None) -> ExecutionResult:
        shell = self._shell
        failed_before = None
        try:
            transformed = shell.transform_cell(source)
        except Exception:
            transformed, failed_before = source, sys.exc_info()
        is_async = shell.should_run_async(source, transformed_cell=transformed, preprocessing_exc_tuple=failed_before)
        cell = shell.run_cell_async(
            source,
            store_history=True,
            transformed_cell=transformed,
            preprocessing_exc_tuple=failed_before,
            cell_id=cell_id,
        )
        result: ExecutionResult | None = None
        try:
            if is_async:
                task = self.loop.create_task(cell)
                with interrupts_cancel(task, self.loop):
                    result = await task
            else:
                result = _pseudo_sync_runner(cell)
        except BaseException as error:
            info = ExecutionInfo(source, True, False, True, cell_id, None, transformed_cell=transformed)
            result = ExecutionResult(info)
            result.error_in_exec = error
            shell.showtraceback(running_compiled_code=True)
        finally:
            shell.events.trigger("post_execute")
            shell.events.trigger("post_run_cell", result)
        assert result is not None
        return result

    def _reply(self, result: ExecutionResult, execution_count: int) -> dict[str, Any]:
        shell = self._shell
        reply: dict[str, Any] = {"status": "ok", "execution_count": execution_count, "user_expressions": {}}
        if not result.success or shell.failed_while_displaying:
            error = result.error_before_exec if result.error_before_exec is not None else result.error_in_exec
            if is_out_of_memory(error):
                self._tell_memory()
            reply.update(
                status="error", ename=type(error).__name__, evalue=cut(str(error)), traceback=shell.last_traceback or []
            )
        reply["results"] = tell_results(shell)
        reply["payload"] = shell.payloads.read_payload()
        shell.payloads.clear_payload()
        return reply

    def _tell_memory(self) -> None:
        try:
            note = memory_note(self._shell.user_ns)
        except Exception as error:
            # A device in such a state may refuse to answer, and a person's class to be looked at.
            log.warning("memory_not_told error=%s", type(error).__name__)
            return
        self._shell.publish({"type": "stream", "name": "stderr", "text": note})

    def _failed(self, error: BaseException, execution_count: int) -> dict[str, Any]:
        content: dict[str, Any] = {"ename": type(error).__name__, "evalue": cut(str(error))}
        content["traceback"] = self._shell.last_traceback
        if not content["traceback"]:
            content["traceback"] = [f"{content['ename']}: {content['evalue']}"]
            self._shell.publish({"type": "error", **content})
        content["results"] = tell_results(self._shell)
        return {"status": "error", "execution_count": execution_count, "payload": [], "user_expressions": {}, **content}
