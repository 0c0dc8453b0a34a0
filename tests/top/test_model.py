from __future__ import annotations

from typing import Any

import pytest
from top_snapshots import NOTHING, NOW_MS, ended, host, lease, snapshot, worker

from looseleaf.top import model
from looseleaf.top.panels import PANELS


def states(**parts: Any) -> list[str]:
    return [row.state for row in model.gpu_rows(snapshot(pool={"hosts": [host("h0", 2, **parts)]}))]


def test_gpu_is_free_warm_leased_or_as_its_worker_is() -> None:
    assert states() == ["free", "free"]
    assert states(workers=[worker("w-1", "s-1", "COMPLETED", 1)]) == ["free", "warm"]
    assert states(leases=[lease("x-1", "s-1", 0)]) == ["leased", "free"]
    running = worker("w-1", "s-1", "DEVICE_READY", 0, 1, execution="x-1")
    assert states(leases=[lease("x-1", "s-1", 0, 1)], workers=[running]) == ["device ready"] * 2
    old = worker("w-1", "s-1", "COMPLETED", 0, execution="x-0")
    assert states(leases=[lease("x-1", "s-1", 0)], workers=[old]) == ["leased", "free"]
    assert states(liveness="dead") == ["dead", "dead"]


def test_gpu_row_has_session_execution_and_memory() -> None:
    parts = {"leases": [lease("x-123456789abcdef", "s-1", 0)],
             "workers": [worker("w-1", "s-1", "RUNNING", 0, execution="x-123456789abcdef", size=3 << 30),
                         worker("w-2", "s-2", "COMPLETED", 0, size=1 << 30)]}  # fmt: skip
    first, second = model.gpu_rows(snapshot(pool={"hosts": [host("h0", 2, gpu={"name": "A100"}, **parts)]}))
    assert first == model.GpuRow("h0", "0", "A100", "running", "s-1", "x-123456789a", "4.0 GiB of 16.0 GiB")
    assert (second.session, second.execution, second.memory) == ("-", "-", "0 B of 16.0 GiB")


def test_queue_and_sessions_are_in_the_services_order() -> None:
    run = {"execution_id": "x-1", "session_id": "s-1", "position": 1, "reason": "1 GPU busy.", "priority": "batch",
           "waited_s": 75.0}  # fmt: skip
    head = {"session_id": "s-1", "title": "", "version": "4", "durable_version": "3",
            "updated_unix_ms": str(NOW_MS - 120_000)}  # fmt: skip
    found = snapshot(
        pool={"queue": [run], "hosts": [host("h0", 2, workers=[worker("w-1", "s-1", "HOST_READY")])]}, sessions=[head]
    )
    assert model.queue_rows(found) == [model.QueueRow(1, "s-1", "batch", "75.0 s", "1 GPU busy.")]
    assert model.session_rows(found) == [
        model.SessionRow("s-1", "-", "4 (not yet durable)", "2 min ago", "h0:- host ready")]


def test_zygotes_below_the_base_are_shown_with_what_they_add() -> None:
    nodes = [
        {"parent_id": "0", "pid": 1, "imports": ["torch"]}, {"parent_id": "1", "pid": 0, "imports": ["dead"]},
        {"parent_id": "2", "pid": 3, "imports": ["pandas", "seaborn"]},
    ]  # fmt: skip
    told = {**snapshot()["hosts"]["h0"], "zygotes": nodes}
    (row,) = model.zygote_rows(snapshot(hosts={"h0": told}))
    assert row.packages == "numpy, torch, + pandas seaborn"


def test_zygotes_are_shown_by_package_and_hosts_that_do_not_answer_are_left_out() -> None:
    (row,) = model.zygote_rows(snapshot(hosts={**snapshot()["hosts"], "h1": None}))
    assert row == model.ZygoteRow("h0", "11", "numpy, torch", "1", "4.0 MiB of 8.0 MiB")


def test_store_line_tells_damage_and_the_last_collection() -> None:
    assert model.store_line(snapshot()).endswith("no garbage collected since its start")
    store = {**snapshot()["store"], "regions_damaged": "2", "last_collection": {
        "ended_s_ago": 61.0, "versions_dropped": "3", "units_deleted": "0", "regions_deleted": "9"}}
    text = model.store_line(snapshot(store=store))
    assert "2 DAMAGED" in text and "1 min ago: 3 version(s), 0 unit(s), 9 region(s)" in text


def test_runs_have_their_figures_and_bars_to_one_scale() -> None:
    failed = {**ended("x-3", "FAILED"), "reason": "WORKER_LOST", "figures": None, "lease": None}
    found = snapshot(pool={"ended": [
        ended("x-1", prepare_ms=500.0, run_s=1.0, save_ms=500.0, start_ms=100.0), ended("x-2", run_s=0.5), failed]})
    first, second, third = model.run_rows(found, bar_chars=8)
    assert (first.bar, second.bar, third.bar) == ("▒▒████░░", "██", "")
    assert (first.start, first.prepare, first.run, first.save) == ("0.10 s", "0.50 s", "1.00 s", "0.50 s")
    assert (first.state, first.path) == ("saved", "prepared")
    assert third == model.RunRow("x-3", "s-1", "failed: WORKER_LOST", "-", "-", "-", "-", "-", "")


@pytest.mark.parametrize(
    ("parts", "longest_s", "shown"),
    [((0.0, 0.0, 0.0), 0.0, ""), ((0.001, 9.0, 0.001), 9.002, "▒██░"), ((0.0, 4.0, 0.0), 4.0, "████"),
     ((1.0, 1.0, 1.0), 3.0, "▒█░"), ((0.0, 0.0, 0.0), 5.0, "")],
)  # fmt: skip
def test_bar_shows_every_part_that_took_time_and_never_more_than_fits(
    parts: tuple[float, ...], longest_s: float, shown: str
) -> None:
    assert model.bar(parts, longest_s, 4) == shown


@pytest.mark.parametrize(
    ("age_s", "text"), [(-1, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")]
)
def test_ago_uses_the_largest_unit(age_s: float, text: str) -> None:
    assert model.ago(age_s) == text


def test_services_that_do_not_answer_leave_their_panels_empty() -> None:
    assert all(panel.rows(NOTHING) == [] for panel in PANELS)
    assert (model.pool_line(NOTHING), model.store_line(NOTHING)) == ("scheduler: no answer", "store: no answer")


def test_every_panel_has_as_many_cells_as_columns() -> None:
    head = {"session_id": "s-1", "title": "t", "version": "1", "durable_version": "1", "updated_unix_ms": "0"}
    run = {"execution_id": "x", "session_id": "s", "position": 1, "reason": "", "priority": "batch", "waited_s": 0.0}
    found = snapshot(pool={"queue": [run], "ended": [ended("x-1")]}, sessions=[head])
    for panel in PANELS:
        rows = panel.rows(found)
        assert rows and all(len(row) == len(panel.columns) for row in rows), panel.key
