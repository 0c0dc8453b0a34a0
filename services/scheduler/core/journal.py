"""The execution journal: PENDING -> DISPATCHED -> STARTED -> FINISHED -> SAVED | FAILED | INDETERMINATE.

At most one start per execution id: an execution goes back to PENDING only while its lease provably reached nobody,
and a record that ended is never dispatched again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from looseleaf.ids import Epoch, ExecutionId, SessionId
from looseleaf.services.scheduler.core.facts import ExecutionRecord, ExecutionState, Figures, Lease

_LIVE = (ExecutionState.PENDING, ExecutionState.DISPATCHED, ExecutionState.STARTED, ExecutionState.FINISHED)


class ExecutionJournal:
    """Records of executions in memory; every method returns the record to be written, if one changed.

    Bounded: of the ended ones the oldest beyond `records_max` are forgotten; live ones are bounded by the queue
    and the number of GPUs.
    """

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._live: dict[ExecutionId, ExecutionRecord] = {}
        self._ended: OrderedDict[ExecutionId, ExecutionRecord] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    def restore(self, records: Iterable[ExecutionRecord]) -> None:
        """Takes in what an earlier life wrote."""
        for record in sorted(records, key=lambda record: record.number):
            self._put(record)
            self._number = max(self._number, record.number)

    def get(self, execution_id: ExecutionId) -> ExecutionRecord | None:
        """The record, or None if the id is unknown or long forgotten."""
        return self._live.get(execution_id) or self._ended.get(execution_id)

    def live(self) -> Iterator[ExecutionRecord]:
        """Records of executions that have not ended, in order of their first request."""
        return iter(list(self._live.values()))

    def newest_ended(self, limit: int) -> list[ExecutionRecord]:
        """Executions that ended, the last one first."""
        return list(islice(reversed(self._ended.values()), limit))

    def open(self, execution_id: ExecutionId, session_id: SessionId, epoch: Epoch) -> ExecutionRecord:
        """A new PENDING record; also for one that failed before it was ever dispatched."""
        self._number += 1
        return self._put(ExecutionRecord(self._number, execution_id, session_id, epoch, ExecutionState.PENDING))

    def dispatch(self, execution_id: ExecutionId, lease: Lease) -> ExecutionRecord:
        """PENDING -> DISPATCHED under `lease`. Any other state is a fault of ours: AssertionError."""
        record = self._live[execution_id]
        if record.state is not ExecutionState.PENDING:
            raise AssertionError(f"{execution_id} is {record.state.name}, not PENDING")
        return self._put(_moved(record, ExecutionState.DISPATCHED, lease))

    def withdraw(self, execution_id: ExecutionId) -> ExecutionRecord:
        """DISPATCHED -> PENDING: the lease provably reached nobody. Any other state is a fault of ours."""
        record = self._live[execution_id]
        if record.state is not ExecutionState.DISPATCHED:
            raise AssertionError(f"{execution_id} is {record.state.name}, not DISPATCHED")
        return self._put(replace(record, state=ExecutionState.PENDING, lease=None))

    def drop_lease(self, execution_id: ExecutionId) -> None:
        """Forgets an undelivered lease of a record that is about to end; the end is what gets written."""
        record = self._live[execution_id]
        self._live[execution_id] = replace(record, lease=None)

    def advance(
        self, execution_id: ExecutionId, state: ExecutionState, reason: str = "", *, inferred: bool = False,
    ) -> ExecutionRecord | None:
        """Moves forward; None if nothing changes: an execution neither goes back nor ends twice.

        `inferred` says that nobody reported it. What was only inferred gives way to a report, also to one of an
        earlier stage, since the daemon's word is the truth.
        """
        record = self.get(execution_id)
        if record is None:
            return None
        if record.state.ended:
            if inferred or not record.inferred:
                return None
        elif state <= record.state:
            return None
        return self._put(_moved(record, state, record.lease, reason, inferred=inferred))

    def add_held(self, execution_id: ExecutionId, gpu_seconds: float) -> ExecutionRecord | None:
        """Adds to the time that the execution's leases held GPUs."""
        record = self.get(execution_id)
        if record is None:
            return None
        return self._put(_with_figures(record, record.figures, record.held_gpu_s + gpu_seconds))

    def add_figures(self, execution_id: ExecutionId, figures: Figures) -> ExecutionRecord | None:
        """Sets the figures of a run."""
        record = self.get(execution_id)
        return self._put(_with_figures(record, figures, record.held_gpu_s)) if record is not None else None

    def prune(self) -> list[ExecutionId]:
        """Forgets the oldest ended records beyond the bound; returns their ids."""
        forgotten: list[ExecutionId] = []
        while len(self._ended) > self._records_max:
            forgotten.append(self._ended.popitem(last=False)[0])
        return forgotten

    def _put(self, record: ExecutionRecord) -> ExecutionRecord:
        if record.state in _LIVE:
            self._ended.pop(record.execution_id, None)
            self._live[record.execution_id] = record
        else:
            self._live.pop(record.execution_id, None)
            self._ended[record.execution_id] = record
        return record


# `replace` takes many times as long, and these are made with each step of each run.
def _moved(
    record: ExecutionRecord, state: ExecutionState, lease: Lease | None, reason: str = "", *, inferred: bool = False,
) -> ExecutionRecord:
    return ExecutionRecord(
        record.number, record.execution_id, record.session_id, record.epoch, state, reason, lease, record.figures,
        inferred, record.held_gpu_s)


def _with_figures(record: ExecutionRecord, figures: Figures | None, held_gpu_s: float) -> ExecutionRecord:
    return ExecutionRecord(
        record.number, record.execution_id, record.session_id, record.epoch, record.state, record.reason,
        record.lease, figures, record.inferred, held_gpu_s)


def reopenable(record: ExecutionRecord) -> bool:
    """True if it failed before any lease of it reached anybody, so that the same id may be asked for again."""
    return record.state is ExecutionState.FAILED and record.lease is None
