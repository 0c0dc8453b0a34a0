from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from daemon_fakes import down, within

from looseleaf.errors import NotFound
from looseleaf.services.worker_daemon import reports
from looseleaf.services.worker_daemon.reports import Reporter
from looseleaf.v1 import scheduler_pb2 as pb


class Scheduler:
    """Hears reports; `errors` are raised first."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.heard: list[str] = []
        self.request_ids: set[str] = set()
        self.ended: list[str] = []
        self.may_hear = asyncio.Event()
        self.may_hear.set()

    async def send(self, request: pb.ReportExecutionRequest) -> None:
        await self.may_hear.wait()
        self.request_ids.add(request.request_id)
        if self.errors:
            raise self.errors.pop(0)
        self.heard.append(request.execution_id)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setattr(reports, "RETRY_DELAY_S", 0.001)
    monkeypatch.setattr(reports, "STOP_LIMIT_S", 0.05)
    return Scheduler()


@pytest.fixture
async def reporter(scheduler: Scheduler) -> AsyncIterator[Reporter]:
    made = Reporter(scheduler.send, lambda request: scheduler.ended.append(request.execution_id))
    made.start()
    yield made
    await within(made.stop())


def report(name: str, *, release: bool = False) -> pb.ReportExecutionRequest:
    return pb.ReportExecutionRequest(execution_id=name, release=release)


async def test_reports_are_heard_in_order_and_outcomes_free_their_lease(
    reporter: Reporter, scheduler: Scheduler
) -> None:
    reporter.report_progress(report("x-1"))
    reporter.report_end(report("x-1", release=True))
    reporter.report_progress(report("x-2"))
    await within(reporter.flushed())
    assert (scheduler.heard, scheduler.ended) == (["x-1", "x-1", "x-2"], ["x-1"])


async def test_report_is_repeated_under_one_request_id_until_it_is_heard(
    reporter: Reporter, scheduler: Scheduler
) -> None:
    scheduler.errors = [down("scheduler"), down("scheduler")]
    reporter.report_end(report("x-1", release=True))
    await within(reporter.flushed())
    assert scheduler.heard == ["x-1"] and len(scheduler.request_ids) == 1


async def test_refused_outcome_is_dropped_and_frees_its_lease(reporter: Reporter, scheduler: Scheduler) -> None:
    scheduler.errors = [NotFound("EXECUTION_UNKNOWN", "gone")]
    reporter.report_end(report("x-1", release=True))
    await within(reporter.flushed())
    assert (scheduler.heard, scheduler.ended) == ([], ["x-1"])


async def test_fault_in_one_report_does_not_stop_the_next(reporter: Reporter, scheduler: Scheduler) -> None:
    scheduler.errors = [ZeroDivisionError("planted")]
    reporter.report_end(report("x-1", release=True))
    reporter.report_end(report("x-2", release=True))
    await within(reporter.flushed())
    assert (scheduler.heard, scheduler.ended) == (["x-2"], ["x-1", "x-2"])


async def test_progress_is_bounded_and_outcomes_are_not_dropped(
    reporter: Reporter, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PROGRESS_WAITING_MAX", 2)
    scheduler.may_hear.clear()
    for number in range(5):
        reporter.report_progress(report(f"p-{number}"))
    reporter.report_end(report("x-1", release=True))
    scheduler.may_hear.set()
    await within(reporter.flushed())
    assert scheduler.heard == ["p-0", "p-1", "x-1"]


async def test_stop_does_not_wait_for_a_scheduler_that_is_away(reporter: Reporter, scheduler: Scheduler) -> None:
    scheduler.errors = [down("scheduler") for _ in range(1000)]
    reporter.report_end(report("x-1", release=True))
    await within(reporter.stop())
    assert scheduler.ended == []
