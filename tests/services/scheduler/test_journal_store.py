"""The journal's bytes: what is written is what is read, and what cannot be read is said."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import Corrupt, Unsupported
from looseleaf.ids import Epoch, ExecutionId, HostId, LeaseId, SessionId, WorkerId
from looseleaf.kv import Batch, open_kv
from looseleaf.services.scheduler.core.actions import (
    ForgetExecution,
    ForgetHost,
    ForgetSession,
    Journal,
    JournalHost,
    JournalSession,
    JournalTotals,
    MarkReady,
)
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
from looseleaf.services.scheduler.journal_store import (
    JournalStore,
    decode_execution,
    decode_host,
    decode_session,
    decode_totals,
    encode_execution,
    encode_host,
    encode_session,
    encode_totals,
)

texts = st.text(max_size=20)
counts = st.integers(0, 2**63)
times = st.floats(0, 1e12)
leases = st.builds(
    Lease, texts.map(LeaseId), texts.map(SessionId), counts.map(Epoch), texts.map(ExecutionId), texts.map(HostId),
    texts, st.lists(st.integers(0, 63), max_size=8).map(tuple), texts.map(WorkerId), st.sampled_from(StartPath), counts,
    st.booleans())
figures = st.builds(Figures, times, times, times, times, counts, counts, counts, times, times, times)
records = st.builds(
    ExecutionRecord, counts, texts.map(ExecutionId), texts.map(SessionId), counts.map(Epoch),
    st.sampled_from(ExecutionState), texts, st.none() | leases, st.none() | figures, st.booleans(), times)


def record(name: str, number: int = 1) -> ExecutionRecord:
    return ExecutionRecord(number, ExecutionId(name), SessionId("s1"), Epoch(1), ExecutionState.PENDING)


@given(records)
def test_execution_record_survives_the_round_trip(given_record: ExecutionRecord) -> None:
    assert decode_execution(encode_execution(given_record)) == given_record


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_as_corrupt(data: bytes) -> None:
    for decode in (decode_execution, decode_host, decode_session, decode_totals):
        with contextlib.suppress(Corrupt):
            decode(data)


def test_lease_of_an_older_version_is_read() -> None:
    lease = Lease(
        LeaseId("l1"), SessionId("s1"), Epoch(1), ExecutionId("x1"), HostId("h0"), "unix:/h0", (0,), WorkerId("w1"),
        StartPath.WARM, 10_000)
    fields = msgpack.unpackb(encode_execution(replace(record("x1"), lease=lease)))
    assert fields[6].pop() is False
    assert decode_execution(msgpack.packb(fields)).lease == lease


def test_host_and_sums_survive_the_round_trip() -> None:
    host = HostRecord(HostId("h0"), "unix:/h0", "i1", True)
    assert decode_host(encode_host(host)) == host
    owner = SessionRecord(SessionId("s1"), Epoch(3), "team")
    assert decode_session(encode_session(owner)) == owner
    assert decode_session(msgpack.packb(["s1", 3])) == replace(owner, tenant="")
    assert decode_totals(encode_totals(Totals(1.5))) == Totals(1.5)


def test_batches_are_read_back_after_closing(tmp_path: Path) -> None:
    host = HostRecord(HostId("h0"), "unix:/h0", "i1", True)
    store = JournalStore(open_kv(tmp_path / "journal"))
    assert store.load().executions == ()
    store.write([Journal(record("x1")), Journal(record("x2", 2)), JournalHost(host), JournalTotals(Totals(2.0))])
    store.write([ForgetExecution(ExecutionId("x1")), JournalHost(HostRecord(HostId("h1"), "a", "i", False))])
    owner = SessionRecord(SessionId("s1"), Epoch(3))
    store.write([JournalSession(owner), JournalSession(SessionRecord(SessionId("s2"), Epoch(1)))])
    store.write([ForgetHost(HostId("h1")), ForgetSession(SessionId("s2"))])
    store.flush()
    store.close()
    store = JournalStore(open_kv(tmp_path / "journal"))
    restored = store.load()
    store.close()
    assert restored.executions == (record("x2", 2),)
    assert restored.hosts == (host,)
    assert restored.sessions == (owner,)
    assert restored.totals == Totals(2.0)


def test_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    kv = open_kv(tmp_path, "memory")
    batch = Batch()
    batch.put(b"v", b"99")
    kv.write(batch)
    with pytest.raises(Unsupported) as raised:
        JournalStore(kv).load()
    assert raised.value.reason == "JOURNAL_FORMAT"


def test_damaged_record_stops_the_start(tmp_path: Path) -> None:
    kv = open_kv(tmp_path, "memory")
    batch = Batch()
    batch.put(b"x/x1", b"\x00")
    kv.write(batch)
    with pytest.raises(Corrupt):
        JournalStore(kv).load()


def test_action_that_is_no_record_is_a_fault_of_ours(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        JournalStore(open_kv(tmp_path, "memory")).write([MarkReady()])
