"""What a host's workers are looked up by agrees with a look at all of them, after any changes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from looseleaf.ids import HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core.facts import WorkerStage
from looseleaf.services.scheduler.core.host_table import HostTable
from looseleaf.services.scheduler.core.hosts import Host, Worker
from looseleaf.services.scheduler.core.limits import Limits

IDS, SESSIONS, HOSTS = ("w0", "w1", "w2"), ("s0", "s1"), ("h0", "h1")
STAGES = st.sampled_from([WorkerStage.HOST_READY, WorkerStage.RUNNING, WorkerStage.COMPLETED])
# What happens to one worker of one host: it comes or comes anew, changes, goes; or its host goes or comes back.
STEPS = st.tuples(
    st.sampled_from(["put", "change", "change unseen", "drop", "clear", "forget"]), st.sampled_from(HOSTS),
    st.sampled_from(IDS), st.sampled_from(SESSIONS), st.booleans(), STAGES, st.booleans())


@given(st.lists(STEPS, max_size=30))
@example([
    ("put", "h0", "w0", "s0", False, WorkerStage.HOST_READY, False),
    ("put", "h0", "w1", "s0", False, WorkerStage.HOST_READY, False),
    ("change", "h0", "w0", "s0", True, WorkerStage.COMPLETED, True)])
def test_sessions_bound_and_speculative_workers_are_those_that_a_look_at_all_finds(
    steps: list[tuple[str, str, str, str, bool, WorkerStage, bool]],
) -> None:
    table = HostTable(Limits())
    for what, host_name, worker_name, session, bound, stage, has_run in steps:
        host_id, worker_id = HostId(host_name), WorkerId(worker_name)
        host = table.get(host_id)
        if host is None:
            host = Host(host_id, "a", "i1", 0.0)
            table.add(host)
        worker = host.workers.get(worker_id)
        if what == "put":
            host.workers[worker_id] = Worker(
                worker_id, SessionId(session), stage, gpu_indices=(0,) if bound else (), has_run=has_run)
        elif what.startswith("change") and worker is not None:
            worker.session_id, worker.gpu_indices = SessionId(session), (0,) if bound else ()
            worker.stage, worker.has_run = stage, has_run
            table.touch(host_id, worker if what == "change" else None)
        elif what == "drop":
            host.workers.pop(worker_id, None)
        elif what == "clear":
            host.workers.clear()
        elif what == "forget":
            table.forget(host_id)
        everyone = [(host, worker) for host in table for worker in host.workers.values()]
        for name in SESSIONS:
            theirs = [(h.host_id, w.worker_id) for h, w in everyone if w.session_id == name]
            found = [(h.host_id, w.worker_id) for h, w in table.workers_of(SessionId(name))]
            assert found == theirs
            assert table.hosts_of(SessionId(name)) == {h.host_id for h, w in everyone if w.session_id == name}
        for host in table:
            workers = host.workers.values()
            assert {w.worker_id for w in host.workers.bound()} == {w.worker_id for w in workers if w.gpu_indices}
            assert host.workers.speculative == sum(w.speculative for w in workers)
