"""Which workers of a lost daemon may go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.services.worker_daemon.core.adoption import OpenRun, SessionHead, is_alive, refusal
from looseleaf.services.worker_daemon.core.lease_table import HeldLease

LEASE = HeldLease(
    LeaseId("l-1"), SessionId("s-1"), Epoch(3), ExecutionId("x-1"), (0,), WorkerId("w-1"), 3, 10.0, 1.0, 11.0, True
)
RUN = OpenRun(
    LEASE, Version(5), 7, 0.0, 20.0, 1.0, "START_PATH_COLD", WorkerId("w-1"), 4711, 99, "boot-1", "/run/w.sock", lives=1
)
HEAD = SessionHead(Epoch(3), Version(5), ExecutionId("x-0"))


@pytest.mark.parametrize(
    ("boot_id", "ticks", "alive"), [("boot-1", 99, True), ("boot-1", None, False), ("boot-1", 100, False),
                                    ("boot-2", 99, False)],
)  # fmt: skip
def test_worker_is_there_only_as_the_same_process_of_the_same_boot(
    boot_id: str, ticks: int | None, alive: bool
) -> None:
    assert is_alive(RUN, boot_id, ticks) is alive


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD, ""),
        # The last daemon committed it, and only its answer did not come.
        (replace(HEAD, version=Version(6), execution_id=ExecutionId("x-1")), ""),
        (replace(HEAD, version=Version(6)), "VERSION_MOVED"),
        # What it started from was only in the lost arena: the session fell back, and its epoch rose.
        (replace(HEAD, version=Version(4), epoch=Epoch(4)), "STALE_EPOCH"),
        (replace(HEAD, version=Version(4)), "VERSION_MOVED"),
        (replace(HEAD, epoch=Epoch(4)), "STALE_EPOCH"),
        (None, "SESSION_UNKNOWN"),
    ],
)
def test_worker_goes_on_only_if_its_save_can_be_the_sessions_next_version(head: SessionHead | None, why: str) -> None:
    assert refusal(RUN, head, "/run/w.sock") == why


def test_worker_that_looks_elsewhere_is_not_waited_for() -> None:
    assert refusal(RUN, HEAD, "/other/w.sock") == "SOCKET_MOVED"
