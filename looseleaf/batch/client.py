"""An nbclient that runs a notebook on the LooseLeaf kernel and has the next cells prepared (design §4)."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from looseleaf.batch.report import CellRecord
from looseleaf.errors import InvalidArgument
from looseleaf.kernel.install import KERNEL_NAME, kernel_spec
from looseleaf.kernel.preparations import PREPARE_REQUEST

# How many cells beyond the one that ended are looked at for the next GPU cell.
LOOKAHEAD_CELLS: Final = 4
PREPARE_REPLY_TIMEOUT_S: Final = 60.0
NOTEBOOK_BYTES_MAX: Final = 512 << 20


class OneSpec(KernelSpecManager):
    """Knows one kernelspec, without having it installed."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__()
        self._spec = dict(spec)

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """It, whatever the notebook's metadata asks for."""
        return KernelSpec(**self._spec)


class BatchClient(NotebookClient):
    """Runs all cells in order; `records` holds one CellRecord per executed code cell.

    Between two cells it waits `think_s` seconds, as a person would, while the next GPU cell is prepared. `on_start`
    gets a cell and its index, `on_record` the record of a cell that ended.
    """

    def __init__(
        self,
        nb: Any,
        *,
        endpoint: str,
        think_s: float = 0.0,
        on_start: Callable[[Any, int], None] | None = None,
        on_record: Callable[[CellRecord], None] | None = None,
        env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # Sockets in a folder of our own: nobody else on the machine reads what a notebook says.
        self._folder = Path(tempfile.mkdtemp(prefix="looseleaf-kernel-"))
        manager = AsyncKernelManager(
            kernel_name=KERNEL_NAME, kernel_spec_manager=OneSpec(kernel_spec(endpoint=endpoint, env=dict(env or {}))),
            transport="ipc", connection_file=str(self._folder / "kernel.json"),
        )  # fmt: skip
        super().__init__(nb, km=manager, kernel_name=KERNEL_NAME, on_cell_executed=self._executed, **kwargs)
        # nbclient leaves a manager that it was given running.
        self.owns_km = True
        # A batch run is nobody's history.
        self.extra_arguments = [*self.extra_arguments, "--HistoryManager.hist_file=:memory:"]
        self.records: list[CellRecord] = []
        self.kernel_pid: int | None = None
        # Id of the cell that runs or ran last.
        self.current_cell = ""
        self._think_s = think_s
        self._on_start = on_start
        self._on_record = on_record
        self._preparing: asyncio.Task[None] | None = None
        self._edit_sequence = 0
        self._began_s = 0.0

    async def async_execute_cell(
        self, cell: Any, cell_index: int, execution_count: int | None = None, store_history: bool = True
    ) -> Any:
        """One cell, after the pause."""
        if not is_executed(cell):
            return await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        if self.kernel_pid is None and self.km is not None:
            self.kernel_pid = getattr(self.km.provisioner, "pid", None)
        if self._think_s and self.records:
            await asyncio.sleep(self._think_s)
        await self._stop_preparing()
        self.current_cell = cell.get("id") or str(cell_index)
        if self._on_start is not None:
            self._on_start(cell, cell_index)
        assert self.kc is not None
        # nbclient sends no metadata; a notebook's page does.
        self.kc.session.metadata = {
            "cellId": cell.get("id", ""), "looseleaf": {"device": device_wish(cell), "priority": "batch"},
        }  # fmt: skip
        self._began_s = time.monotonic()
        try:
            return await super().async_execute_cell(cell, cell_index, execution_count, store_history)
        finally:
            if self.kc is not None:
                self.kc.session.metadata = {}

    async def _executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        figures = execute_reply.get("metadata", {}).get("looseleaf") or {}
        record = CellRecord.of(cell.get("id") or str(cell_index), figures)
        content = execute_reply.get("content", {})
        if not figures:
            record.run_s = time.monotonic() - self._began_s
        if content.get("status") != "ok" and record.error is None:
            record.error = {"ename": content.get("ename"), "evalue": content.get("evalue")}
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)
        later = [other for other in self.nb.cells[cell_index + 1 :] if is_executed(other)]
        self._preparing = asyncio.create_task(self._prepare_next(later[:LOOKAHEAD_CELLS]))

    async def _prepare_next(self, cells: list[Any]) -> None:
        for cell in cells:
            content = await self._ask_prepare(cell)
            if content.get("status") != "ok" or content.get("recipe", {}).get("label") == "gpu":
                return

    async def _ask_prepare(self, cell: Any) -> dict[str, Any]:
        assert self.kc is not None
        self._edit_sequence += 1
        asked = {
            "cell_id": cell.get("id", ""), "source": cell.source, "edit_sequence": self._edit_sequence,
            "device_override": device_wish(cell),
        }  # fmt: skip
        message = self.kc.session.msg(PREPARE_REQUEST, asked)
        self.kc.control_channel.send(message)
        while True:
            reply = await self.kc.control_channel.get_msg(timeout=PREPARE_REPLY_TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                content: dict[str, Any] = reply["content"]
                return content

    async def _stop_preparing(self) -> None:
        """Run does not wait for a preparation; what it has reached is used."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
            self._preparing = None

    async def _async_cleanup_kernel(self) -> None:
        await self._stop_preparing()
        # nbclient also calls it at exit, whether or not anything is left to clean.
        if self.km is not None:
            await super()._async_cleanup_kernel()
        shutil.rmtree(self._folder, ignore_errors=True)


def is_executed(cell: Any) -> bool:
    """Whether the cell is code that runs."""
    return cell.cell_type == "code" and bool(cell.source.strip())


def device_wish(cell: Any) -> str:
    """The device that the cell's metadata asks for, gpu or cpu; else empty."""
    wishes = cell.metadata.get("looseleaf")
    device = wishes.get("device", "") if isinstance(wishes, dict) else ""
    return device if device in ("gpu", "cpu") else ""


def read_notebook(path: Path) -> Any:
    """The notebook in format 4. Raises InvalidArgument `NOTEBOOK_MISSING` or `NOTEBOOK_UNREADABLE`."""
    try:
        if path.stat().st_size > NOTEBOOK_BYTES_MAX:
            raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} is larger than {NOTEBOOK_BYTES_MAX >> 20} MiB")
        return nbformat.read(os.fspath(path), as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError as error:
        raise InvalidArgument("NOTEBOOK_MISSING", f"there is no notebook {path}") from error
    except OSError as error:
        raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} cannot be read: {error.strerror or error}") from error
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidArgument("NOTEBOOK_UNREADABLE", f"{path} is no notebook: {first}") from error
