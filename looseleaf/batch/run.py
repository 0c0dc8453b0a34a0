"""One notebook of a batch run, from its kernel's start to its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from looseleaf.batch.client import BatchClient, RunStopped
from looseleaf.batch.pool import Pool
from looseleaf.batch.report import CellRecord
from looseleaf.batch.resume import ResumeRecord
from looseleaf.batch.save_keeper import SaveKeeper, StateGone
from looseleaf.errors import LooseLeafError
from looseleaf.kernel.title import TITLE_VARIABLE

# A cell that was interrupted has so long to end by itself.
INTERRUPT_GRACE_S: Final = 15.0
# Errors of cells that say something of the system, not of the notebook; see docs/errors.md.
SYSTEM_REASONS: Final = frozenset({
    "NO_CLUSTER", "CONFIG_INVALID", "WORKER_LOST", "HOST_LOST", "CELL_LOST", "CLUSTER_LOST", "SAVE_TIMEOUT",
    "HOST_STOPPED", "EXECUTION_INDETERMINATE", "NO_LEASE", "RUN_QUEUE_FULL", "SESSION_QUEUE_FULL", "WORKERS_FULL",
    "ARENA_FULL", "STORE_FULL", "TENANT_FULL", "DISK_FULL", "STORE_BUSY", "STALE_EPOCH", "CHECKSUM_MISMATCH",
    "REGIONS_LOST", "GPU_OCCUPIED", "GRANTS_REFUSED", "BUG",
})  # fmt: skip
# A part that does not answer gives its name with one of these.
_SYSTEM_ENDINGS: Final = ("_DOWN", "_TIMEOUT")


class Outcome(StrEnum):
    """What became of a notebook."""

    OK = "ok"
    # A cell raised, or took longer than allowed.
    CELL_FAILED = "cell_failed"
    # The kernel died, or a part of LooseLeaf could not do its work.
    SYSTEM_FAILED = "system_failed"
    INTERRUPTED = "interrupted"
    # It was not begun.
    SKIPPED = "skipped"


@dataclass
class BatchResult:
    """`failure`: why the run stopped before its last cell, empty if it did not. `failed_cell`: at which cell.

    `start_s`: from the kernel's start until it answered. `wall_s`: of the whole notebook, that included.
    """

    records: list[CellRecord] = field(default_factory=list)
    kernel_pid: int | None = None
    failure: str = ""
    failed_cell: str = ""
    outcome: Outcome = Outcome.OK
    start_s: float = 0.0
    wall_s: float = 0.0
    # Cells before this one ran in an earlier run.
    first_index: int = 0
    # Why a later run cannot go on from the newest cells; empty if it can.
    resume_problem: str = ""


def environment_of(embedded: bool) -> dict[str, str]:
    """Variables for a kernel whose session ends with the run: nobody will want what no GPU cell needs."""
    return {"LOOSELEAF_KERNEL_COMMIT_IDLE": "0", "LOOSELEAF_KERNEL_JOURNAL_BYTES_MAX": "0"} if embedded else {}


class StopSignal:
    """Asks runs of one event loop to stop: once with an interrupt of the cell, twice at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """The first call interrupts, any other cuts off."""
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()


def run_notebook(nb: Any, pool: Pool, *, folder: Path, **options: Any) -> BatchResult:
    """`run_notebook_async` in an event loop of its own."""
    return asyncio.run(run_notebook_async(nb, pool.endpoint, folder=folder, embedded=pool.embedded, **options))


async def run_notebook_async(
    nb: Any,
    endpoint: str,
    *,
    folder: Path,
    think_s: float = 0.0,
    timeout_s: float | None = None,
    priority: str = "batch",
    on_start: Callable[[Any, int], None] | None = None,
    on_record: Callable[[CellRecord], None] | None = None,
    stop: StopSignal | None = None,
    embedded: bool = False,
    record: ResumeRecord | None = None,
    title: str = "",
) -> BatchResult:
    """Runs all cells of `nb` in `folder`; outputs go into `nb`. A failing cell ends the run and is in the result.

    After `stop` the running cell is interrupted, what it has shown is kept, and no other begins. `embedded`: the
    session ends with the run, so its state is saved for GPU cells only. `record`: where it goes on, and what a later
    run needs to do so; with it the state is saved between cells. `title`: what people call its session.
    """
    stop = stop or StopSignal()
    began_s = time.monotonic()
    env = {TITLE_VARIABLE: title, **environment_of(embedded)} if title else environment_of(embedded)
    keeper = SaveKeeper(record, nb) if record is not None else None
    while True:
        # A kernel that continues a session has its variables from the start, whether or not a save point is whole.
        session = {"LOOSELEAF_SESSION": keeper.session_id} if keeper is not None and keeper.session_id else {}
        client = BatchClient(
            nb, endpoint=endpoint, think_s=think_s, priority=priority, on_start=on_start, on_record=on_record,
            timeout=timeout_s, resources={"metadata": {"path": str(folder)}}, env={**env, **session}, keeper=keeper,
        )  # fmt: skip
        error = await _error_of(client, stop)
        if not isinstance(error, StateGone):
            break
    result = BatchResult(client.records, client.kernel_pid)
    if error is not None:
        result.outcome, result.failure = _judge(error, client, timeout_s)
    if stop.asked.is_set() and result.outcome is not Outcome.OK:
        result.outcome = Outcome.INTERRUPTED
        result.failure = result.failure or "the run was stopped"
    if result.failure:
        result.failed_cell = client.current_cell
    if keeper is not None:
        result.first_index = keeper.first_index
        if result.outcome is Outcome.OK:
            keeper.ended_well()
        result.resume_problem = keeper.problem
    result.start_s, result.wall_s = client.kernel_start_s, time.monotonic() - began_s
    return result


async def _error_of(client: BatchClient, stop: StopSignal) -> BaseException | None:
    """Runs the client's notebook; what ended it before its last cell, RunStopped if it was cut off."""
    running = asyncio.ensure_future(client.async_execute())
    try:
        await _until_ended(client, running, stop)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    return RunStopped() if running.cancelled() else running.exception()


async def _until_ended(client: BatchClient, running: asyncio.Future[Any], stop: StopSignal) -> None:
    """Returns when `running` is done, which `stop` hastens."""
    asked, at_once = (asyncio.ensure_future(event.wait()) for event in (stop.asked, stop.at_once))
    waiters: list[asyncio.Future[Any]] = [asked, at_once]
    try:
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return
        interrupting = asyncio.ensure_future(client.interrupt())
        waiters.append(interrupting)
        # What waits between two cells, or for its kernel, has nothing to end.
        limit_s = INTERRUPT_GRACE_S if client.cell_runs else 0.0
        await asyncio.wait({running, at_once}, return_when=asyncio.FIRST_COMPLETED, timeout=limit_s)
        if not running.done():
            client.shutdown_kernel = "immediate"
            running.cancel()
            await asyncio.wait({running})
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


def _judge(error: BaseException, client: BatchClient, timeout_s: float | None) -> tuple[Outcome, str]:
    """The outcome that an exception of nbclient stands for, and why in words. Raises what is a fault of ours."""
    match error:
        case RunStopped():
            return Outcome.INTERRUPTED, "the run was stopped"
        case CellExecutionError():
            outcome = Outcome.SYSTEM_FAILED if is_system_reason(error.ename) else Outcome.CELL_FAILED
            return outcome, f"{error.ename}: {error.evalue}"
        case CellTimeoutError():
            return Outcome.CELL_FAILED, f"CELL_TIMEOUT: the cell did not end within {timeout_s:g} s"
        case LooseLeafError():
            return Outcome.SYSTEM_FAILED, f"{error.reason}: {error.message}"
        case DeadKernelError():
            text = "KERNEL_DIED: the kernel process ended by itself; saved state is in the cluster"
            return Outcome.SYSTEM_FAILED, text
        case RuntimeError() if not client.records and any(word in str(error) for word in ("respond", "died")):
            # What jupyter_client raises for a kernel that does not come up.
            text = f"KERNEL_START_FAILED: {error}; see what `python -m looseleaf.kernel` says"
            return Outcome.SYSTEM_FAILED, text
    raise error


def is_system_reason(ename: str) -> bool:
    """Whether an error of this name says something of the system, not of the notebook."""
    return ename in SYSTEM_REASONS or (ename.isupper() and ename.endswith(_SYSTEM_ENDINGS))
