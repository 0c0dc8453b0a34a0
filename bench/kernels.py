"""Kernel processes with a client each, and how long their cells take."""

from __future__ import annotations

import contextlib
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

from looseleaf.batch.client import OneSpec
from looseleaf.kernel.install import kernel_spec
from looseleaf.kernel.preparations import PREPARE_REQUEST

CELL_LIMIT_S = 60.0
WORKER_END_LIMIT_S = 15.0
INSTALL_DEVICE = "__import__('looseleaf.devices').devices.install('reference', 'emulated', 1, {delays})"


def wait_gone(worker: int) -> None:
    """Until the process has ended. Raises psutil.TimeoutExpired after `WORKER_END_LIMIT_S`."""
    with contextlib.suppress(psutil.NoSuchProcess):  # gone already, perhaps between the two calls
        psutil.Process(worker).wait(timeout=WORKER_END_LIMIT_S)


@dataclass
class Cell:
    """One run: seconds from its request to the first output and to the reply, what it printed, what the reply told."""

    reply_s: float = 0.0
    first_output_s: float | None = None
    text: str = ""
    report: dict[str, Any] = field(default_factory=dict)


class Kernel:
    """Starts a kernel; use it with `with`. Its sockets lie in a folder of their own: ports may be taken by others."""

    def __init__(self, spec: Mapping[str, Any], first_lines: Iterable[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ll-")
        self._manager = KernelManager(
            kernel_name="bench", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=f"{self._folder.name}/kernel.json",
        )  # fmt: skip
        lines = [f"--IPKernelApp.exec_lines={line}" for line in first_lines]
        self._manager.start_kernel(
            extra_arguments=["--HistoryManager.hist_file=:memory:", *lines], cwd=self._folder.name,
        )  # fmt: skip
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=CELL_LIMIT_S)
        self._edits = 0

    @classmethod
    def stock(cls, first_lines: Iterable[str] = ()) -> Kernel:
        """ipykernel as it comes."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # The hash seed of our kernels: the order of sets, and what follows from it, must not differ.
        env = {"PYTHONHASHSEED": "0"}
        return cls({"argv": argv, "display_name": "stock", "language": "python", "env": env}, first_lines)

    @classmethod
    def stock_with_device(cls, *, delays: bool) -> Kernel:
        """ipykernel in which torch has one virtual GPU: it attaches once, at the first use, and keeps it."""
        return cls.stock([INSTALL_DEVICE.format(delays=delays)])

    @classmethod
    def here(cls, endpoint: str) -> Kernel:
        """The LooseLeaf kernel, on the daemon that listens at `endpoint`."""
        return cls(kernel_spec(endpoint=endpoint))

    def run(self, source: str) -> Cell:
        """Runs a cell to the end of its outputs and its reply. Raises RuntimeError if it fails."""
        cell, began_s, idle = Cell(), time.perf_counter(), False
        # The reply is not read meanwhile: it has come when the kernel says that it is idle, or soon after.
        message_id = self._client.execute(source)
        while not idle:
            try:
                message = self._client.get_iopub_msg(timeout=CELL_LIMIT_S)
            except queue.Empty:
                raise RuntimeError(f"the cell did not end in {CELL_LIMIT_S} s: {source}") from None
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind = message["msg_type"]
            if kind in ("stream", "execute_result", "display_data") and cell.first_output_s is None:
                cell.first_output_s = time.perf_counter() - began_s
            if kind == "stream":
                cell.text += message["content"]["text"]
            idle = kind == "status" and message["content"]["execution_state"] == "idle"
        reply = self._reply_to(message_id)
        cell.reply_s = time.perf_counter() - began_s
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the cell failed: {reply['content']}")
        cell.report = reply["metadata"].get("looseleaf", {})
        return cell

    @contextlib.contextmanager
    def running(self, source: str, end: Path) -> Iterator[None]:
        """While a cell runs that shows something when it has begun, and ends once the file `end` is there."""
        message_id = self._client.execute(source)
        self._await_iopub(message_id, lambda message: message["msg_type"] == "stream")
        yield
        end.touch()
        self._await_iopub(message_id, lambda message: message["content"].get("execution_state") == "idle")
        reply = self._reply_to(message_id)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"the cell failed: {reply['content']}")

    def _reply_to(self, message_id: str) -> dict[str, Any]:
        # A kernel that starts slowly is asked more than once whether it is ready, and answers each time.
        while True:
            reply: dict[str, Any] = self._client.get_shell_msg(timeout=CELL_LIMIT_S)
            if reply["parent_header"].get("msg_id") == message_id:
                return reply

    def _await_iopub(self, message_id: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            message = self._client.get_iopub_msg(timeout=CELL_LIMIT_S)
            if message["parent_header"].get("msg_id") == message_id and wanted(message):
                return

    def reply_s(self, source: str) -> float:
        """Seconds to the reply of a cell without outputs, which are not waited for."""
        began_s = time.perf_counter()
        reply = self._client.execute(source, reply=True, timeout=CELL_LIMIT_S)
        elapsed_s = time.perf_counter() - began_s
        assert reply["content"]["status"] == "ok", reply
        return elapsed_s

    def prepare(self, source: str) -> dict[str, Any]:
        """Has a cell prepared, as an edit does; returns what the kernel answers when that is done."""
        self._edits += 1
        asked = {"cell_id": "", "source": source, "edit_sequence": self._edits, "device_override": ""}
        message = self._client.session.msg(PREPARE_REQUEST, asked)
        self._client.control_channel.send(message)
        while True:
            reply = self._client.get_control_msg(timeout=CELL_LIMIT_S)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                content: dict[str, Any] = reply["content"]
                return content

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()
        self._manager.cleanup_resources()
        self._folder.cleanup()
