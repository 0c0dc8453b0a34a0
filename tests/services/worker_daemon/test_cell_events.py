from __future__ import annotations

from typing import Any

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.services.worker_daemon.cell_events import event_of, response_of
from looseleaf.v1 import worker_daemon_pb2 as pb


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("output", {"message": {"type": "stream", "text": "a\n", "data": b"\0"}}),
        ("input_request", {"prompt": "name? ", "password": True, "question": 3}),
        ("comm_done", {"origin": "o-1", "late": True}),
    ],
)
@pytest.mark.parametrize("number", [{}, {"n": 7}])
def test_event_of_a_worker_reaches_the_kernel_as_it_was_told(kind: str, body: dict[str, Any], number: Any) -> None:
    response = response_of({"t": kind, "execution_id": "x-1", **body, **number})
    assert response is not None and event_of(response) == (kind, {**body, **number})


def test_what_is_no_message_of_a_cell_is_none() -> None:
    assert response_of({"t": "started", "n": 1}) is None
    assert event_of(pb.ExecuteResponse(saved=pb.CellSaved(version=2))) is None
    assert event_of(pb.ExecuteResponse()) is None


@pytest.mark.parametrize("event", [{"t": "output", "message": 3}, {"t": "comm_done", "n": "x"}])
def test_event_that_no_worker_of_ours_tells_is_refused(event: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="FIELD_"):
        response_of(event)
