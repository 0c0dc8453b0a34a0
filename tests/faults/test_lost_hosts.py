"""Hosts that are cut off, stand still or lose their power, and GPUs that are too small or wanted by several at once.

One owner for each session, no cell twice, the newest version or an error that says what is missing.
"""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import pytest

from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from tests.cluster.conftest import Notebook
from tests.faults.fault_pool import CALL_S, GPU_HOSTS, Pool
from tests.faults.held_cell import HeldCell, until

BUSY = (scheduler_pb2.WORKER_STAGE_RUNNING, scheduler_pb2.WORKER_STAGE_SAVING)

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def cut_off(pool: Pool, host: str) -> None:
    """Nobody but the store hears the host any more, nor does it hear anybody else."""
    pool.links.hold(f"{host}-scheduler")
    pool.links.hold(f"{host}-in")


def mend(pool: Pool, host: str) -> None:
    """What was on its way arrives late."""
    pool.links.release(f"{host}-scheduler")
    pool.links.release(f"{host}-in")


def test_cell_on_a_host_that_is_cut_off_ends_and_is_saved(pool: Pool, one: Notebook, tmp_path: Path) -> None:
    cell = HeldCell(tmp_path, then="value = 7\nprint('at its end')")
    message = one.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host, before = lease.host.host_id, pool.head(lease.session_id).version
    cut_off(pool, host)
    pool.until_host(host, "dead")
    cell.end()
    until(lambda: pool.head(lease.session_id).version > before, "the cell was not saved")
    mend(pool, host)
    outcome = one.finish(message)
    assert (outcome.status, outcome.text, cell.starts) == ("ok", "at its end\n", 1), outcome
    assert one.ok("%%gpu\nvalue + 1").value == "8"
    pool.line_of_versions(lease.session_id)


def test_owner_that_was_cut_off_and_replaced_saves_nothing(pool: Pool, tmp_path: Path) -> None:
    first = pool.notebook(tmp_path)
    first.ok("value = 'of both'")
    cell = HeldCell(tmp_path, then="value = 'of the first'")
    first.start(cell.code)
    cell.until_started()
    [lease] = pool.leases()
    host = lease.host.host_id
    cut_off(pool, host)
    os.kill(first.pid, signal.SIGKILL)
    second = pool.notebook(tmp_path, {"LOOSELEAF_SESSION": lease.session_id})
    try:
        moved = second.ok("%%gpu\nseen = value\nvalue = 'of the second'")
        assert moved.report["host"] != host
        cell.end()
        until(lambda: not _busy(pool, host), "the old cell never ended")
        mend(pool, host)
        pool.until_host(host, "alive")
        pool.until_unused()
        assert second.ok("seen, value").value == "('of both', 'of the second')"
        assert cell.starts == 1
        pool.line_of_versions(lease.session_id)
    finally:
        second.close()
        first.close()


def _busy(pool: Pool, host: str) -> bool:
    """Whether a cell runs or is saved on that host, as its own daemon says."""
    return any(worker.stage in BUSY for worker in pool.host(host).workers)


def test_host_whose_heartbeats_are_lost_gets_no_work_though_orders_reach_it(
    pool: Pool, one: Notebook, two: Notebook, tmp_path: Path
) -> None:
    pool.links.hold("h1-scheduler", "there")
    pool.until_host("h1", "dead")
    first, second = HeldCell(tmp_path, "first"), HeldCell(tmp_path, "second")
    messages = [one.start(first.code)]
    first.until_started()
    assert [lease.host.host_id for lease in pool.host("h2").leases] == ["h2"]
    messages.append(two.start(second.code))
    until(lambda: pool.view().queued_runs == 1, "the second cell does not wait")
    assert not pool.host("h1").leases and second.starts == 0
    pool.links.release("h1-scheduler")
    second.until_started()
    for notebook, cell, message, host in zip((one, two), (first, second), messages, ("h2", "h1"), strict=True):
        cell.end()
        outcome = notebook.finish(message)
        assert (outcome.status, outcome.report["host"], cell.starts) == ("ok", host, 1), outcome


def test_host_that_stood_still_starts_nothing_that_went_elsewhere(pool: Pool, one: Notebook, tmp_path: Path) -> None:
    warm = one.ok("%%gpu\nkept = [1]").report["host"]
    pool.until_unused()
    [other] = set(GPU_HOSTS) - {warm}
    cell = HeldCell(tmp_path, then="kept.append(2)")
    pool.links.hold(f"{warm}-in", "there")
    message = one.start(cell.code)
    until(lambda: pool.seen(warm).leases, "its own worker's host was not asked")
    pool.cluster.pause(f"daemon-{warm}")
    try:
        # The order lies there until the host goes on.
        pool.links.release(f"{warm}-in")
        cell.until_started()
        pool.until_host(warm, "dead")
    finally:
        pool.cluster.resume(f"daemon-{warm}")
    pool.until_host(warm, "alive")
    until(lambda: not pool.host(warm).leases, "the order that came late is kept")
    cell.end()
    outcome = one.finish(message)
    assert (outcome.status, outcome.report["host"], cell.starts) == ("ok", other, 1), outcome
    assert one.ok("%%gpu\nkept").value == "[1, 2]"


def until_durable(pool: Pool, session_id: str, version: int) -> None:
    """Until the version survives the loss of any host."""
    until(lambda: pool.head(session_id).durable_version >= version, f"version {version} is not durable")


def session_of(pool: Pool, notebook: Notebook, code: str) -> str:
    """Runs a GPU cell; its session's id."""
    host, worker = (notebook.ok(code).report[key] for key in ("host", "worker"))
    return next(str(state.session_id) for state in pool.host(host).workers if state.pid == worker)


def test_hosts_without_power_cost_the_running_cell_and_damaged_bytes_their_variable(
    pool: Pool, one: Notebook, two: Notebook, tmp_path: Path
) -> None:
    made = "kept = [1]\nwide = torch.ones(1 << 20)\ndamaged = torch.full((1 << 20,), 12345.678)"
    warm = session_of(pool, one, f"%%gpu\nimport torch\n{made}")
    one.prepare("%%gpu\nkept.append(2)")
    running = session_of(pool, two, "%%gpu\nmine = [1]")
    for session_id in (warm, running):
        until_durable(pool, session_id, pool.head(session_id).version)
    cell = HeldCell(tmp_path, then="mine.append(2)")
    message = two.start(cell.code)
    cell.until_started()
    assert _flip_a_bit(Path(pool.cluster.record.data) / "store", struct.pack("<f", 12345.678) * 4096)
    # With the hosts their copies of all bytes are gone.
    pool.power_off(*GPU_HOSTS)
    outcome = two.finish(message)
    assert outcome.ename == "CELL_LOST" and "run the cell again" in outcome.error, outcome
    assert one.ok("%%gpu\nkept.append(2)\nkept, wide.sum().item()").value == "([1, 2], 1048576.0)"
    assert two.ok("%%gpu\nmine.append(3)\nmine").value == "[1, 3]"
    refused = one.run("%%gpu\ndamaged.sum().item()")
    assert refused.status == "error" and "damaged" in refused.error, refused
    assert one.ok("%%gpu\nwide.sum().item()").value == "1048576.0"
    # Nobody has started it again.
    assert cell.starts == 1
    for session_id in (warm, running):
        pool.line_of_versions(session_id)


def _flip_a_bit(folder: Path, pattern: bytes) -> bool:
    """In the first file that has the pattern; False if none has it."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        at = path.read_bytes().find(pattern)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([pattern[0] ^ 1]))
            return True
    return False


def test_run_during_a_preparation_sees_the_version_that_came_meanwhile(pool: Pool, one: Notebook) -> None:
    """The worker is made ready, another cell commits, somebody wants the worker gone, Run comes: one of them wins."""
    one.ok("value = [1]\nplain = 5")
    one.ok("%looseleaf release")
    code = "%%gpu\nvalue, plain"
    for host in GPU_HOSTS:
        pool.hold_at(f"{host}-fetch")
    _begin_preparation(one, code)
    until(lambda: any((pool.folder / f"at-{host}-fetch").exists() for host in GPU_HOSTS), "nothing is prepared")
    [host] = [host for host in GPU_HOSTS if (pool.folder / f"at-{host}-fetch").exists()]
    one.ok("value.append(2)")
    for worker in pool.host(host).workers:
        order = pb.EvictWorkerRequest(request_id=f"e-{worker.worker_id}", worker_id=worker.worker_id, epoch=1 << 30)
        pool.daemon(host, lambda stub, order=order: stub.EvictWorker(order, timeout_s=CALL_S))
    message = one.start(code)
    for each in GPU_HOSTS:
        pool.go_on(f"{each}-fetch")
    outcome = one.finish(message)
    assert (outcome.status, outcome.results) == ("ok", ["([1, 2], 5)"]), outcome


def _begin_preparation(notebook: Notebook, code: str) -> None:
    """As an edit does; nobody waits for the answer."""
    body = {"cell_id": "", "source": code, "edit_sequence": 1_000_000, "device_override": ""}
    notebook.client.control_channel.send(notebook.client.session.msg("looseleaf_prepare_request", body))


def test_variables_that_fit_no_gpu_are_refused_and_a_cell_that_fills_one_fails_alone(
    pool: Pool, one: Notebook
) -> None:
    for name in ("a", "b"):
        one.ok(f"%%gpu\nimport torch\n{name} = torch.ones(10 << 20, device='cuda')")
        one.ok("%looseleaf release")
    refused = one.run("%%gpu\n(a.sum() + b.sum()).item()")
    assert refused.ename == "NEVER_FITS" and "MiB" in refused.error, refused
    filled = one.run("%%gpu\nc = torch.ones(40 << 20, device='cuda')")
    assert filled.ename == "OutOfMemoryError", filled
    assert one.ok("%%gpu\na.sum().item()").value == "10485760.0"
