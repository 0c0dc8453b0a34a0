"""An nbclient that runs a notebook on the LooseLeaf kernel and has the next cells prepared (design §4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import ensure_async, run_sync

from looseleaf.batch.cells import cell_key, device_wish, is_executed, wishes_of
from looseleaf.batch.report import CellRecord
from looseleaf.batch.save_keeper import SaveKeeper
from looseleaf.errors import Timeout
from looseleaf.kernel.install import KERNEL_NAME, kernel_spec
from looseleaf.kernel.preparations import PREPARE_REQUEST

# How many cells beyond the one that ended are looked at for the next GPU cell.
LOOKAHEAD_CELLS: Final = 4
# A socket's path has at most 107 bytes; what is added to the folder has 40.
SOCKET_FOLDER_BYTES_MAX: Final = 64
PREPARE_REPLY_TIMEOUT_S: Final = 60.0
# Of everything that a notebook has, which may be many GiB.
SAVE_REPLY_TIMEOUT_S: Final = 3600.0
# Beside a cell that has run for so long the next GPU cell is prepared; shorter ones would only be slowed down.
PREPARE_AFTER_S: Final = 0.3
# A kernel that has not answered is asked again; also when its outputs do not arrive yet.
ANSWER_POLL_S: Final = 1.0
OUTPUT_POLL_S: Final = 0.2


class OneSpec(KernelSpecManager):
    """Knows one kernelspec, without having it installed."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self._spec = dict(spec)

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """It, whatever the notebook's metadata asks for."""
        return KernelSpec(**self._spec)


class RunStopped(Exception):
    """The run was asked to stop before its next cell."""


class BatchClient(NotebookClient):
    """Runs all cells in order; `records` holds one CellRecord per executed code cell.

    Between two cells it waits `think_s` seconds, as a person would; then, and while a cell runs long, the next GPU cell
    is prepared. `priority`: of its GPU cells, "batch" or "interactive". `on_start` gets a cell and its index,
    `on_record` the record of a cell that ended. `spec`: the kernelspec, else ours for the daemon at `endpoint`, with
    `env`. `keeper`: saves the state between cells, and knows where the run goes on. Everything else as for
    NotebookClient; many run side by side in one event loop.
    """

    def __init__(
        self,
        nb: Any,
        *,
        endpoint: str,
        think_s: float = 0.0,
        priority: str = "batch",
        on_start: Callable[[Any, int], None] | None = None,
        on_record: Callable[[CellRecord], None] | None = None,
        env: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        keeper: SaveKeeper | None = None,
        **kwargs: Any,
    ) -> None:
        # Sockets in a folder of our own: nobody else on the machine reads what a notebook says.
        self._folder = Path(tempfile.mkdtemp(prefix="looseleaf-kernel-", dir=_folder_of_sockets()))
        manager = AsyncKernelManager(
            kernel_name=KERNEL_NAME,
            kernel_spec_manager=OneSpec(spec or kernel_spec(endpoint=endpoint, env=dict(env or {}))),
            transport="ipc", connection_file=str(self._folder / "kernel.json"),
        )  # fmt: skip
        # Such as papermill's client pass a manager on that they do not have.
        kwargs.pop("km", None)
        super().__init__(nb, km=manager, kernel_name=KERNEL_NAME, on_cell_executed=self._executed, **kwargs)
        # nbclient leaves a manager that it was given running.
        self.owns_km = True
        # A batch run is nobody's history.
        self.extra_arguments = [*self.extra_arguments, "--HistoryManager.hist_file=:memory:"]
        self.records: list[CellRecord] = []
        self.kernel_pid: int | None = None
        # Id of the cell that runs or ran last.
        self.current_cell = ""
        # Seconds from the kernel's start until it answered.
        self.kernel_start_s = 0.0
        # A cell was sent and has not ended; the kernel has begun it.
        self.cell_runs = False
        self._begun = asyncio.Event()
        self._stopping = False
        self._think_s = think_s
        self._priority = priority
        self._on_start = on_start
        self._on_record = on_record
        self._keeper = keeper
        self._preparing: asyncio.Task[None] | None = None
        self._edit_sequence = 0
        self._began_s = 0.0

    @asynccontextmanager
    async def async_setup_kernel(self, **kwargs: Any) -> AsyncIterator[None]:
        """As nbclient's, without its handlers of signals: they end the kernel, and with it what a cell has shown."""
        kwargs.pop("cleanup_kc", None)
        began_s = time.monotonic()
        starting = asyncio.ensure_future(self.async_start_new_kernel(**kwargs))
        try:
            # A start that is cut in half leaves a process that nobody knows.
            await asyncio.shield(starting)
            await self.async_start_new_kernel_client()
            self.kernel_start_s = time.monotonic() - began_s
            if self._keeper is not None:
                await self._keeper.begin(self._ask_to_save, self.nb)
            yield
        finally:
            await asyncio.gather(starting, return_exceptions=True)
            await self._async_cleanup_kernel()

    async def async_start_new_kernel_client(self) -> Any:
        """As nbclient's, but ready as soon as the kernel is: nbclient first waits for 0.2 s without a message.

        Raises RuntimeError if the kernel ends or says nothing within `startup_timeout`.
        """
        assert self.km is not None
        try:
            self.kc = self.km.client()
            await ensure_async(self.kc.start_channels())  # type: ignore[func-returns-value]
            await self._until_kernel_answers(time.monotonic() + self.startup_timeout)
        except BaseException:
            await self._async_cleanup_kernel()
            raise
        self.kc.allow_stdin = False
        return self.kc

    async def _until_kernel_answers(self, limit_s: float) -> None:
        assert self.kc is not None
        while True:
            self.kc.kernel_info()
            with contextlib.suppress(queue.Empty):
                reply = await ensure_async(self.kc.shell_channel.get_msg(timeout=ANSWER_POLL_S))
                if reply["msg_type"] == "kernel_info_reply":
                    # Outputs of cells come by a connection of their own, which must be there too.
                    await ensure_async(self.kc.iopub_channel.get_msg(timeout=OUTPUT_POLL_S))
                    return
            if not await ensure_async(self.kc.is_alive()):  # type: ignore[attr-defined]
                raise RuntimeError("the kernel died before it answered")
            if time.monotonic() > limit_s:
                raise RuntimeError(f"the kernel did not respond in {self.startup_timeout} s")

    async def interrupt(self) -> None:
        """No further cell begins, and one that was sent gets a KeyboardInterrupt."""
        self._stopping = True
        if self.cell_runs:
            # A kernel that has not begun the cell would forget the interrupt.
            await self._begun.wait()
        if self.cell_runs and self.km is not None:
            await ensure_async(self.km.interrupt_kernel())

    async def async_execute_cell(
        self, cell: Any, cell_index: int, execution_count: int | None = None, store_history: bool = True
    ) -> Any:
        """One cell, after the pause. Raises RunStopped if it shall not begin, and else as nbclient."""
        if not is_executed(cell) or self.skip_cells_with_tag in cell.metadata.get("tags", []):
            return await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        if self._keeper is not None and cell_index < self._keeper.first_index:
            # nbclient numbers the cells.
            self.code_cells_executed += 1
            return cell
        if self.kernel_pid is None and self.km is not None:
            self.kernel_pid = getattr(self.km.provisioner, "pid", None)
        if self._think_s and self.records:
            await asyncio.sleep(self._think_s)
        await self._stop_preparing()
        if self._stopping:
            raise RunStopped
        self.current_cell = cell_key(cell, cell_index)
        if self._on_start is not None:
            self._on_start(cell, cell_index)
        assert self.kc is not None
        # nbclient sends no metadata; a notebook's page does.
        self.kc.session.metadata = {
            "cellId": cell.get("id", ""), "looseleaf": {**wishes_of(cell), "priority": self._priority},
        }  # fmt: skip
        self._began_s = time.monotonic()
        self._begun.clear()
        self.cell_runs = True
        self._preparing = asyncio.create_task(self._prepare_while_it_runs(self._later(cell_index)))
        try:
            ended = await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        except (CellTimeoutError, DeadKernelError) as error:
            self._record_lost(cell, cell_index, error)
            raise
        finally:
            self.cell_runs = False
            self._begun.set()
            if self.kc is not None:
                self.kc.session.metadata = {}
        if self._keeper is not None:
            await self._keeper.cell_ended(self._ask_to_save, self.nb, cell_index)
            self._prepare_later(cell_index)
        return ended

    def _record_lost(self, cell: Any, cell_index: int, error: Exception) -> None:
        """The row of a cell of which no reply came: figures of a GPU are not known."""
        ename = "CELL_TIMEOUT" if isinstance(error, CellTimeoutError) else "KERNEL_DIED"
        record = CellRecord(cell_key(cell, cell_index), label=device_wish(cell) or "unknown", path="")
        record.run_s = time.monotonic() - self._began_s
        record.error = {"ename": ename, "evalue": str(error).partition("\n")[0]}
        self._add_record(record)

    def _add_record(self, record: CellRecord) -> None:
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """As nbclient's."""
        if msg["msg_type"] == "execute_input":
            self._begun.set()
        return super().process_message(msg, cell, cell_index)

    async def _executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        figures = execute_reply.get("metadata", {}).get("looseleaf") or {}
        record = CellRecord.of(cell_key(cell, cell_index), figures)
        content = execute_reply.get("content", {})
        if not figures:
            record.run_s = time.monotonic() - self._began_s
        if content.get("status") != "ok" and record.error is None:
            record.error = {"ename": content.get("ename"), "evalue": content.get("evalue")}
        self._add_record(record)
        await self._stop_preparing()
        if self._keeper is None:
            self._prepare_later(cell_index)

    def _prepare_later(self, cell_index: int) -> None:
        if not self._stopping:
            self._preparing = asyncio.create_task(self._prepare_next(self._later(cell_index)))

    def _later(self, cell_index: int) -> list[Any]:
        later = [other for other in self.nb.cells[cell_index + 1 :] if is_executed(other)]
        return later[:LOOKAHEAD_CELLS]

    async def _prepare_while_it_runs(self, cells: list[Any]) -> None:
        """Beside a cell that takes its time: a worker with the next GPU cell's imports, and what is saved already."""
        await asyncio.sleep(PREPARE_AFTER_S)
        await self._prepare_next(cells)

    async def _prepare_next(self, cells: list[Any]) -> None:
        for cell in cells:
            content = await self._ask_prepare(cell)
            if content.get("status") != "ok" or content.get("recipe", {}).get("label") == "gpu":
                return

    async def _ask_prepare(self, cell: Any) -> dict[str, Any]:
        self._edit_sequence += 1
        asked = {
            "cell_id": cell.get("id", ""), "source": cell.source, "edit_sequence": self._edit_sequence,
            # Nobody edits it: no device is opened for it.
            "device_override": device_wish(cell), "predicted": True,
        }  # fmt: skip
        return await self._ask(PREPARE_REQUEST, asked, PREPARE_REPLY_TIMEOUT_S, "REQUEST_TIMEOUT")

    async def _ask_to_save(self, message_type: str, asked: dict[str, Any]) -> dict[str, Any]:
        return await self._ask(message_type, asked, SAVE_REPLY_TIMEOUT_S, "SAVE_TIMEOUT")

    async def _ask(self, message_type: str, asked: dict[str, Any], timeout_s: float, reason: str) -> dict[str, Any]:
        """One at a time: a reply that another waits for would be lost.

        Raises DeadKernelError, and Timeout with `reason` after `timeout_s`.
        """
        assert self.kc is not None
        message = self.kc.session.msg(message_type, asked)
        self.kc.control_channel.send(message)
        limit_s = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(queue.Empty):
                reply = await self.kc.control_channel.get_msg(timeout=ANSWER_POLL_S)
                if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                    content: dict[str, Any] = reply["content"]
                    return content
            if not await ensure_async(self.kc.is_alive()):  # type: ignore[attr-defined]
                raise DeadKernelError("the kernel died before it answered")
            if time.monotonic() > limit_s:
                raise Timeout(reason, f"the kernel did not answer {message_type} within {timeout_s:g} s")

    async def _stop_preparing(self) -> None:
        """Run does not wait for a preparation; what it has reached is used."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
            self._preparing = None

    async def _async_cleanup_kernel(self) -> None:
        await self._stop_preparing()
        # nbclient also calls it after a start that failed, whether or not anything is left to clean.
        if self.km is not None:
            if self.kc is not None:
                # Its heartbeat is a thread that opens a new socket when the kernel is silent. If it does so while the
                # manager ends the context of both, that waits for ever, and this event loop with all its notebooks.
                await ensure_async(self.kc.stop_channels())  # type: ignore[func-returns-value]
            await super()._async_cleanup_kernel()
        shutil.rmtree(self._folder, ignore_errors=True)

    # The blocking forms, which papermill uses, are those of the methods above.
    start_new_kernel_client = run_sync(async_start_new_kernel_client)
    execute_cell = run_sync(async_execute_cell)
    _cleanup_kernel = run_sync(_async_cleanup_kernel)


def _folder_of_sockets() -> str | None:
    """Where sockets' paths stay below the system's limit; None: the usual temporary folder."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= SOCKET_FOLDER_BYTES_MAX:
        return None
    others = (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp")
    return next((folder for folder in others if os.access(folder, os.W_OK)), None)
