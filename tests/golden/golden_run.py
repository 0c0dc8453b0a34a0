"""One notebook on an ordinary kernel and through LooseLeaf, side by side, with all that a front end is told."""

from __future__ import annotations

import asyncio
import copy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellTimeoutError, DeadKernelError
from nbclient.util import ensure_async

from looseleaf.batch.client import BatchClient, OneSpec

CELL_TIMEOUT_S = 120
# One compute thread on both sides: on a busy machine threads that wait for each other take ten times as long.
THREADS_ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# The same as our kernel has: hashes of strings, and so the order of sets, must not differ.
REFERENCE_ENV = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", **THREADS_ENV}
# Before the first cell, on both sides, leaving no names: what is else seeded by chance. torch begins with a fixed seed.
# Importing numpy draws from `random`.
SEED_LINES = ("__import__('numpy').random.seed(0)", "__import__('random').seed(0)")
# The tip of the day is drawn from `random` at each question for the banner, of which a start has one or more.
NO_TIP = "--InteractiveShell.enable_tip=False"
DEVICE_LINES = (
    "__import__('looseleaf.devices').devices.install('reference', 'emulated', 1)",
    "__import__('looseleaf.devices').devices.hide_in_shell(get_ipython())",
)
# Nothing reaches a network or changes what is installed, quickly and the same everywhere.
OFFLINE_ENV = {
    "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1", "PIP_CONSTRAINT": "",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
# Messages that say what is shown; `status` and `execute_input` frame a run.
SHOWING = frozenset({"stream", "display_data", "update_display_data", "execute_result", "error", "clear_output"})


@dataclass
class CellRun:
    """What one execution of a cell told. `outputs` as they stand when the notebook has ended.

    `comms`: those that it opened, in order. `widgets`: the widgets' states at the cell's end, by comm. `run_again`: it
    was taken back and run a second time; `messages`, `comms` and `widgets` are then those of the second run, behind the
    `clear_output`. `before_clear`: comms that were opened before the last one.
    """

    name: str
    source: str
    execution_count: int | None = None
    reply: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    comms: list[str] = field(default_factory=list)
    widgets: dict[str, dict[str, Any]] = field(default_factory=dict)
    label: str = ""
    run_again: bool = False
    before_clear: list[str] = field(default_factory=list)


@dataclass
class NotebookRun:
    """One executed notebook. `failure`: why it stopped before its last cell, else empty. `folder`: where it ran."""

    cells: list[CellRun]
    folder: Path
    failure: str = ""


class Recording(NotebookClient):
    """A client that goes on after errors and notes the messages of every cell, as they came, in `runs`."""

    def begin(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}
        self.runs = {
            index: CellRun(cell.metadata.pop("golden_name", cell.get("id", str(index))), cell.source)
            for index, cell in enumerate(self.nb.cells)
            if cell.cell_type == "code" and cell.source.strip()
        }

    async def _async_cleanup_kernel(self) -> None:
        if self.kc is not None:
            # See BatchClient.
            await ensure_async(self.kc.stop_channels())
        await super()._async_cleanup_kernel()

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        run = self.runs[cell_index]
        if msg["msg_type"] == "execute_input":
            run.execution_count = msg["content"]["execution_count"]
        elif msg["msg_type"] in SHOWING:
            run.messages.append((msg["msg_type"], copy.deepcopy(msg["content"])))
            if msg["msg_type"] == "clear_output":
                run.before_clear = list(run.comms)
        elif msg["msg_type"] == "comm_open":
            run.comms.append(msg["content"]["comm_id"])
        return super().process_message(msg, cell, cell_index)

    def note_reply(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        run = self.runs[cell_index]
        run.reply = dict(execute_reply["content"])
        # What has not changed is told once.
        states = {comm: state for comm, state in self.widget_state.items() if self._told.get(comm) != state}
        run.widgets = copy.deepcopy(states)
        self._told |= run.widgets


class Reference(Recording):
    """On stock ipykernel; with `device`, torch has one virtual GPU there."""

    def __init__(
        self, nb: Any, folder: Path, sockets: Path, *, device: bool, env: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        lines = [*(DEVICE_LINES if device else ()), *SEED_LINES]
        argv = [
            *prefix, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
            "--HistoryManager.hist_file=:memory:", NO_TIP, *(f"--IPKernelApp.exec_lines={line}" for line in lines),
        ]  # fmt: skip
        spec = {"argv": argv, "display_name": "reference", "language": "python", "env": {**REFERENCE_ENV, **env}}
        manager = AsyncKernelManager(
            kernel_name="reference", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=str(sockets / "reference.json"),
        )  # fmt: skip
        super().__init__(
            nb, km=manager, kernel_name="reference", timeout=CELL_TIMEOUT_S, allow_errors=True,
            resources={"metadata": {"path": str(folder)}}, on_cell_executed=self.note_reply,
        )  # fmt: skip
        self.owns_km = True


class Here(BatchClient, Recording):
    """Through LooseLeaf."""

    def __init__(self, nb: Any, folder: Path, endpoint: str, env: Mapping[str, str]) -> None:
        super().__init__(
            nb, endpoint=endpoint, env={**THREADS_ENV, **env}, timeout=CELL_TIMEOUT_S, allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        seeds = [f"--IPKernelApp.exec_lines={line}" for line in SEED_LINES]
        self.extra_arguments = [*self.extra_arguments, NO_TIP, *seeds]

    async def _executed(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        self.note_reply(cell, cell_index, execute_reply)
        await super()._executed(cell, cell_index, execute_reply)
        run = self.runs[cell_index]
        run.label = self.records[-1].label
        figures = execute_reply.get("metadata", {}).get("looseleaf") or {}
        if figures.get("run_again"):
            run.run_again = True
            cleared = [kind for kind, _ in run.messages].index("clear_output")
            del run.messages[: cleared + 1]
            for comm in run.before_clear:
                run.comms.remove(comm)
                run.widgets.pop(comm, None)
                self.widget_state.pop(comm, None)


def run_sides(
    notebook: Any,
    endpoint: str,
    *,
    plain: bool,
    prepare: Callable[[Path], None] = lambda folder: None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, NotebookRun]:
    """The notebook's runs by side, all at once, each in a folder of its own in which `prepare` puts what it needs.

    Sides: `reference` (stock kernel with the virtual device), `here` (LooseLeaf at `endpoint`), and with `plain` also
    `plain` (stock kernel without it). `env`: more variables of the kernels. Cells that ran earlier under another id are
    sent with that id.
    """
    sides = ["reference", "here", *(["plain"] if plain else [])]
    with tempfile.TemporaryDirectory(prefix="golden-") as top:
        clients: dict[str, tuple[Recording, Path]] = {}
        for side in sides:
            folder, sockets = Path(top, side, "work"), Path(top, side, "s")
            folder.mkdir(parents=True)
            sockets.mkdir()
            prepare(folder)
            nb = _copy(notebook)
            client: Recording
            if side == "here":
                client = Here(nb, folder, endpoint, env)
            else:
                client = Reference(nb, folder, sockets, device=side != "plain", env=env)
            client.begin()
            clients[side] = client, folder
        loop = ensure_event_loop()
        loop.run_until_complete(_run_all([client for client, _ in clients.values()]))
        return {side: collect(client, folder) for side, (client, folder) in clients.items()}


def _copy(notebook: Any) -> Any:
    """A copy whose cells carry the id that a front end would send: that of the cell that is run again."""
    nb = copy.deepcopy(notebook)
    for cell in nb.cells:
        cell.metadata["golden_name"] = cell.get("id", "")
        if "golden_cell_id" in cell.metadata:
            cell["id"] = cell.metadata["golden_cell_id"]
    return nb


async def _run_all(clients: list[Recording]) -> None:
    loop = asyncio.get_running_loop()
    # nbclient would take an interrupt for itself, and the tests would go on with the next notebook.
    loop.add_signal_handler = loop.remove_signal_handler = _refuse_signals  # type: ignore[method-assign]
    try:
        await asyncio.gather(*map(run_one, clients))
    finally:
        del loop.add_signal_handler, loop.remove_signal_handler


def _refuse_signals(*args: Any) -> None:
    raise RuntimeError("signals are pytest's")


async def run_one(client: Recording) -> None:
    client.failure = ""
    try:
        await client.async_execute()
    except DeadKernelError:
        client.failure = "the kernel died"
    except (CellTimeoutError, CellControlSignal) as error:
        client.failure = f"{type(error).__name__}: {error}"


def collect(client: Recording, folder: Path) -> NotebookRun:
    for index, run in client.runs.items():
        run.outputs = list(client.nb.cells[index].outputs)
    return NotebookRun(list(client.runs.values()), folder, client.failure)
