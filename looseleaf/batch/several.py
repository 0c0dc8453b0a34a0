"""Several notebooks at once: one kernel each, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from looseleaf.batch.cells import cell_key
from looseleaf.batch.files import Job, write_notebook
from looseleaf.batch.pool import Pool
from looseleaf.batch.report import CellRecord
from looseleaf.batch.resume import ResumeRecord, refuse_without_cluster
from looseleaf.batch.run import BatchResult, Outcome, StopSignal, run_notebook_async

JOBS_MAX: Final = 64
FAILURES: Final = frozenset({Outcome.CELL_FAILED, Outcome.SYSTEM_FAILED})


class Listener(Protocol):
    """Hears how the notebooks go on; `index` is the job's place in the run."""

    def began(self, index: int) -> None:
        """Its kernel is being started."""
        ...

    def cell_began(self, index: int, cell_id: str) -> None:
        """A cell was sent."""
        ...

    def cell_ended(self, index: int, record: CellRecord) -> None:
        """It ended, well or not."""
        ...

    def ended(self, index: int, result: BatchResult) -> None:
        """The notebook ended and is written; also for one that was skipped."""
        ...


@dataclass(frozen=True)
class RunOptions:
    """How all notebooks of a run go. `at_once`: how many kernels there may be.

    `resume`: each goes on where its last run stopped, if that is known.
    """

    at_once: int = 1
    think_s: float = 0.0
    timeout_s: float | None = None
    fail_fast: bool = False
    resume: bool = False


@dataclass(frozen=True)
class RunsResult:
    """`results`: one for each job, in order. `interrupted`: the person, or the system, asked the run to stop."""

    results: list[BatchResult]
    interrupted: bool


def run_all(jobs: Sequence[Job], pool: Pool, options: RunOptions, listener: Listener) -> RunsResult:
    """Runs every job and writes its notebook; main thread only, because SIGINT and SIGTERM stop it in order.

    The first signal interrupts the running cells and begins nothing more, a second one ends the kernels at once; what
    was executed is written in either case. With `fail_fast` the first failure stops the others in the same way.
    Raises PreconditionFailed `RESUME_WITHOUT_CLUSTER` before anything runs.
    """
    return asyncio.run(_Runs(jobs, pool, options, listener).run())


class _Runs:
    def __init__(self, jobs: Sequence[Job], pool: Pool, options: RunOptions, listener: Listener) -> None:
        self._jobs = jobs
        self._pool = pool
        self._options = options
        self._listener = listener
        self._stop = StopSignal()
        self._places = asyncio.Semaphore(options.at_once)
        self._interrupted = False
        record_of = ResumeRecord.read if options.resume else ResumeRecord.beside
        self._records = [record_of(job.output) for job in jobs]
        refuse_without_cluster(self._records, pool.embedded)

    async def run(self) -> RunsResult:
        with self._signals():
            results = await asyncio.gather(*(self._run_one(index, job) for index, job in enumerate(self._jobs)))
        return RunsResult(list(results), self._interrupted)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            loop.add_signal_handler(number, self._interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, previous[number])

    def _interrupt(self) -> None:
        self._interrupted = True
        self._stop.ask()

    async def _run_one(self, index: int, job: Job) -> BatchResult:
        async with self._places:
            if self._stop.asked.is_set():
                result = BatchResult(outcome=Outcome.SKIPPED)
            else:
                self._listener.began(index)
                result = await self._executed(index, job)
        if result.outcome in FAILURES and self._options.fail_fast:
            self._stop.asked.set()
        self._listener.ended(index, result)
        return result

    async def _executed(self, index: int, job: Job) -> BatchResult:
        options, listener = self._options, self._listener

        def cell_began(cell: Any, cell_index: int) -> None:
            listener.cell_began(index, cell_key(cell, cell_index))

        record: ResumeRecord | None = self._records[index]
        if self._pool.embedded:
            # The state of a run whose cluster ends with it is gone by then; what it writes is newer than any record.
            with contextlib.suppress(OSError):
                self._records[index].forget()
            record = None
        try:
            result = await run_notebook_async(
                job.nb, self._pool.endpoint_of(index), folder=job.folder, think_s=options.think_s,
                timeout_s=options.timeout_s, stop=self._stop, record=record,
                title=str(job.source.resolve()),
                embedded=self._pool.embedded, on_start=cell_began,
                on_record=lambda record: listener.cell_ended(index, record),
            )  # fmt: skip
        except Exception as error:
            # The other notebooks go on; this one says what it met.
            result = BatchResult(outcome=Outcome.SYSTEM_FAILED, failure=f"BUG: {type(error).__name__}: {error}")
        try:
            write_notebook(job.nb, job.output)
        except OSError as error:
            result.outcome = Outcome.SYSTEM_FAILED
            result.failure = f"OUTPUT_UNWRITABLE: {job.output}: {error.strerror or error}"
        return result
