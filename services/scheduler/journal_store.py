"""The journal on disk: records of executions and hosts, and the sums, in an ordered key-value store.

Keys: `v` format version, `t` sums, `x/<execution id>`, `h/<host id>`, `s/<session id>`; values are msgpack. A batch
survives SIGKILL when `write` returns, and a loss of power after the next `flush`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from looseleaf.errors import Corrupt, Unsupported
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.kv import Batch, KvBackend, scan_all
from looseleaf.services.scheduler.core.actions import (
    Action,
    ForgetExecution,
    ForgetHost,
    ForgetSession,
    Journal,
    JournalHost,
    JournalSession,
    JournalTotals,
)
from looseleaf.services.scheduler.core.events import JournalRestored
from looseleaf.services.scheduler.core.facts import (
    ExecutionRecord,
    ExecutionState,
    Figures,
    HostRecord,
    Lease,
    SessionRecord,
    StartPath,
    Totals,
)

FORMAT_VERSION: Final = 1
_VERSION_KEY, _TOTALS_KEY = b"v", b"t"
_EXECUTION_PREFIX, _HOST_PREFIX, _SESSION_PREFIX = b"x/", b"h/", b"s/"


class JournalStore:
    """Reads the journal once and writes it in batches; every method blocks."""

    def __init__(self, kv: KvBackend) -> None:
        self._kv = kv

    def load(self) -> JournalRestored:
        """All that an earlier life wrote. Raises Unsupported JOURNAL_FORMAT, Corrupt JOURNAL_RECORD_BAD."""
        version = self._kv.get(_VERSION_KEY)
        if version is None:
            batch = Batch()
            batch.put(_VERSION_KEY, str(FORMAT_VERSION).encode())
            self._kv.write(batch, durable=True)
        elif version != str(FORMAT_VERSION).encode():
            raise Unsupported(
                "JOURNAL_FORMAT", f"The scheduler's journal has format {version.decode(errors='replace')}, this version"
                f" reads {FORMAT_VERSION}: start the version that wrote it, or move the scheduler's data folder away.",
            )
        executions = [decode_execution(value) for _key, value in scan_all(self._kv, _EXECUTION_PREFIX)]
        hosts = [decode_host(value) for _key, value in scan_all(self._kv, _HOST_PREFIX)]
        sessions = [decode_session(value) for _key, value in scan_all(self._kv, _SESSION_PREFIX)]
        totals = self._kv.get(_TOTALS_KEY)
        return JournalRestored(
            tuple(executions), tuple(hosts), tuple(sessions),
            decode_totals(totals) if totals is not None else Totals(),
        )

    def write(self, actions: Sequence[Action]) -> None:
        """Applies the journal actions in order, all or nothing; other actions are a fault of ours."""
        batch = Batch()
        for action in actions:
            match action:
                case Journal(record):
                    batch.put(_EXECUTION_PREFIX + record.execution_id.encode(), encode_execution(record))
                case ForgetExecution(execution_id):
                    batch.delete(_EXECUTION_PREFIX + execution_id.encode())
                case JournalHost(host):
                    batch.put(_HOST_PREFIX + host.host_id.encode(), encode_host(host))
                case ForgetHost(host_id):
                    batch.delete(_HOST_PREFIX + host_id.encode())
                case JournalSession(session):
                    batch.put(_SESSION_PREFIX + session.session_id.encode(), encode_session(session))
                case ForgetSession(session_id):
                    batch.delete(_SESSION_PREFIX + session_id.encode())
                case JournalTotals(totals):
                    batch.put(_TOTALS_KEY, encode_totals(totals))
                case _:
                    raise AssertionError(f"{action} is no journal action")
        self._kv.write(batch)

    def flush(self) -> None:
        """What was written survives a loss of power."""
        self._kv.flush()

    def close(self) -> None:
        """Closes the database; it must not be left open at the interpreter's exit."""
        self._kv.close()


def encode_execution(record: ExecutionRecord) -> bytes:
    """The record as msgpack; fields by position, so that a field is only ever added at the end."""
    lease, figures = record.lease, record.figures
    return _pack([
        record.number, record.execution_id, record.session_id, record.epoch, int(record.state), record.reason,
        None if lease is None else [
            lease.lease_id, lease.session_id, lease.epoch, lease.execution_id, lease.host_id, lease.address,
            list(lease.gpu_indices), lease.worker_id, int(lease.path), lease.ttl_ms, lease.worker_required,
        ],
        None if figures is None else [
            figures.prepare_ms, figures.start_ms, figures.run_s, figures.save_ms, figures.dirty_regions,
            figures.total_regions, figures.bytes_moved, figures.gpu_held_s, figures.gpu_pinned_s,
            figures.gpu_resident_s,
        ],
        record.inferred, record.held_gpu_s,
    ])


def decode_execution(data: bytes) -> ExecutionRecord:
    """The inverse; raises Corrupt JOURNAL_RECORD_BAD."""
    try:
        number, execution_id, session_id, epoch, state, reason, lease, figures, inferred, held = _unpack(data)
        return ExecutionRecord(
            int(number), ExecutionId(str(execution_id)), SessionId(str(session_id)), Epoch(int(epoch)),
            ExecutionState(state), str(reason), None if lease is None else _lease(lease),
            None if figures is None else _figures(figures), bool(inferred), float(held),
        )
    except (ValueError, TypeError) as error:
        raise _bad("an execution") from error


def _lease(fields: list[Any]) -> Lease:
    # An older version did not write the last one.
    lease_id, session_id, epoch, execution_id, host_id, address, gpus, worker_id, path, ttl_ms, *required = fields
    return Lease(
        LeaseId(str(lease_id)), SessionId(str(session_id)), Epoch(int(epoch)), ExecutionId(str(execution_id)),
        HostId(str(host_id)), str(address), tuple(int(index) for index in gpus), WorkerId(str(worker_id)),
        StartPath(path), int(ttl_ms), any(required),
    )


def _figures(fields: list[Any]) -> Figures:
    prepare_ms, start_ms, run_s, save_ms, dirty, total, moved, held_s, pinned_s, resident_s = fields
    return Figures(
        float(prepare_ms), float(start_ms), float(run_s), float(save_ms), int(dirty), int(total), int(moved),
        float(held_s), float(pinned_s), float(resident_s),
    )


def encode_host(record: HostRecord) -> bytes:
    """The record as msgpack."""
    return _pack([record.host_id, record.address, record.incarnation, record.alive])


def decode_host(data: bytes) -> HostRecord:
    """The inverse; raises Corrupt JOURNAL_RECORD_BAD."""
    try:
        host_id, address, incarnation, alive = _unpack(data)
        return HostRecord(HostId(str(host_id)), str(address), str(incarnation), bool(alive))
    except (ValueError, TypeError) as error:
        raise _bad("a host") from error


def encode_session(record: SessionRecord) -> bytes:
    """The record as msgpack."""
    return _pack([record.session_id, record.epoch, record.tenant])


def decode_session(data: bytes) -> SessionRecord:
    """The inverse, also of records without a tenant; raises Corrupt JOURNAL_RECORD_BAD."""
    try:
        session_id, epoch, tenant = [*_unpack(data), ""][:3]
        return SessionRecord(SessionId(str(session_id)), Epoch(int(epoch)), str(tenant))
    except (ValueError, TypeError) as error:
        raise _bad("a session") from error


def encode_totals(totals: Totals) -> bytes:
    """The sums as msgpack."""
    return _pack([totals.held_gpu_s])


def decode_totals(data: bytes) -> Totals:
    """The inverse; raises Corrupt JOURNAL_RECORD_BAD."""
    try:
        # A second field counted executions once.
        held_gpu_s, *_ = _unpack(data)
        return Totals(float(held_gpu_s))
    except (ValueError, TypeError) as error:
        raise _bad("the sums") from error


def _pack(fields: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _unpack(data: bytes) -> list[Any]:
    try:
        fields = msgpack.unpackb(data, raw=False)
    except Exception as error:  # msgpack raises many kinds for bytes that are not its own
        raise ValueError("not msgpack") from error
    if not isinstance(fields, list):
        raise TypeError("not a list")
    return fields


def _bad(what: str) -> Corrupt:
    return Corrupt(
        "JOURNAL_RECORD_BAD", f"The scheduler's journal holds a record of {what} that cannot be read. Saved notebook"
        " state is not touched by this; move the scheduler's data folder away to start with an empty journal.",
    )
