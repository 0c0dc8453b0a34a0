"""The line under a cell that waits for its GPU process: there while it waits, gone without a trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from looseleaf.kernel.forwarder import Publishers, RequestPublisher
from looseleaf.kernel.preparations import PREPARE_REQUEST
from looseleaf.kernel.wait_line import REASON_CHARS_MAX, wait_told, waiting_text

LIMIT_S = 20.0
AT_ONCE_S = 1e-6
SHOWS_WAIT = (
    "import dataclasses\nlooseleaf = get_ipython().kernel.looseleaf\n"
    "looseleaf.config = dataclasses.replace(looseleaf.config, wait_line_after_s={after_s})\ndel dataclasses, looseleaf"
)


def test_line_says_what_is_waited_for() -> None:
    assert waiting_text({}, 0.51) == "LooseLeaf: preparing (0.5 s)"
    queue = {"position": 3, "reason": "all GPUs\nare busy"}
    assert waiting_text({"queue": queue}, 2) == "LooseLeaf: waiting for a GPU, place 3: all GPUs are busy (2.0 s)"
    assert waiting_text({"queue": {"position": 1, "reason": ""}}, 2).endswith("place 1 (2.0 s)")
    assert len(waiting_text({"queue": {"position": 1, "reason": "x" * 999}}, 2)) < REASON_CHARS_MAX + 60
    assert "on h1 (" in waiting_text({"queue": queue, "lease": {"host_id": "h1"}}, 2)


class Iopub:
    """What was sent, and a publisher that sends it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.arrived = asyncio.Event()
        publishers = Publishers(self._send, lambda *_: None, dict)
        self.publisher: RequestPublisher = publishers.request({})

    def _send(self, _parent: Any, kind: str, content: dict[str, Any], *_: Any) -> None:
        self.sent.append((kind, content))
        self.arrived.set()


async def test_line_makes_way_for_the_first_output_and_does_not_come_back() -> None:
    iopub = Iopub()
    with wait_told(iopub.publisher, 0.0, AT_ONCE_S, dict):
        await asyncio.wait_for(iopub.arrived.wait(), LIMIT_S)
        assert iopub.publisher.hold_place("newer")
        iopub.publisher.publish("stream", {"text": "shown"}, {}, [])
        assert not iopub.publisher.hold_place("too late")
    kinds = [kind for kind, _ in iopub.sent]
    assert kinds == ["display_data", "update_display_data", "clear_output", "stream"]
    ids = {content["transient"]["display_id"] for _kind, content in iopub.sent[:2]}
    assert len(ids) == 1


@pytest.mark.parametrize("after_s", [0.0, LIMIT_S])
async def test_cell_that_waits_no_longer_shows_no_line(after_s: float) -> None:
    iopub = Iopub()
    with wait_told(iopub.publisher, 0.0, after_s, dict):
        await asyncio.sleep(0)
    assert iopub.sent == []


def test_line_is_shown_by_a_page_that_has_no_other_way(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        await run.event("queue", position=2, reason="all GPUs are busy")
        await run.interrupts.get()
        await run.event("stage", stage=6, worker_id="w-1", pid=4242, elapsed_ms=1.0)
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["waits"] = play
    notebook.ok(SHOWS_WAIT.format(after_s=AT_ONCE_S))
    try:
        sent = notebook.send("%%gpu\nwaits", cellId="c-1")
        shown: list[str] = []
        while not any("place 2: all GPUs are busy" in text for text in shown):
            message = notebook.client.get_iopub_msg(timeout=LIMIT_S)
            if message["msg_type"] in ("display_data", "update_display_data"):
                shown.append(message["content"]["data"]["text/plain"])
        notebook.control("interrupt_request", {})()
        assert notebook.finish(sent).kinds[-1] == "clear_output"
        # Nobody reads it in a batch run, nor where the page's own line tells.
        daemon.plays.clear()
        assert notebook.ok("%%gpu\n1", cellId="c-1", looseleaf={"priority": "batch"}).kinds == ["execute_result"]
        assert notebook.ok("%%gpu\n1").kinds == ["execute_result"]
        notebook.control(PREPARE_REQUEST, {"cell_id": "c", "source": "%%gpu\n1", "page": "page-1"})()
        assert notebook.ok("%%gpu\n1", cellId="c-1").kinds == ["execute_result"]
    finally:
        notebook.ok(SHOWS_WAIT.format(after_s=0.0))
