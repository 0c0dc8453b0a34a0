"""The line under a cell that waits for its GPU process: there while it waits, gone without a trace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.kernel.forwarder import Publishers, RequestPublisher, publish_output
from looseleaf.kernel.journal_reader import fold, text_of
from looseleaf.kernel.outgoing import watch_outgoing
from looseleaf.kernel.passing_line import REQUESTS_MAX, ShownOutputs
from looseleaf.kernel.preparations import PREPARE_REQUEST
from looseleaf.kernel.wait_line import REASON_CHARS_MAX, WaitUpdates, wait_told, waiting_text

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
    """What was sent, as a kernel's session sends it, and publishers under the request `waits`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.watched: list[tuple[str, str]] = []
        self.arrived = asyncio.Event()
        shown = ShownOutputs()
        self._session: Any = SimpleNamespace(send=self._keep)
        watch_outgoing(self._session, lambda of, kind, _content: self.watched.append((of, kind)), shown.take)
        newest = {"header": {"msg_id": "waits"}}
        self.publishers = Publishers(self._send, lambda *_: None, lambda: newest, shown)
        self.publisher: RequestPublisher = self.publishers.request(newest)

    def _keep(self, _stream: Any, kind: str, content: Any, *_: Any) -> None:
        self.sent.append((kind, content))
        self.arrived.set()

    def _send(self, parent: Any, kind: str, content: dict[str, Any], *_: Any) -> None:
        self._session.send(None, kind, content, parent)

    def thread_prints(self, text: str, request_id: str = "waits") -> None:
        """As ipykernel has it: what a thread prints belongs to the newest request, past all publishers of ours."""
        self._session.send(None, "stream", {"name": "stdout", "text": text}, {"msg_id": request_id})

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _content in self.sent]

    @property
    def on_page(self) -> str:
        """What a page shows that has had all of it."""
        return text_of(fold({"t": kind, "content": content} for kind, content in self.sent))


async def test_line_makes_way_for_the_first_output_and_does_not_come_back() -> None:
    iopub = Iopub()
    with wait_told(iopub.publisher.line, 0.0, AT_ONCE_S, dict):
        await asyncio.wait_for(iopub.arrived.wait(), LIMIT_S)
        assert iopub.publisher.line.show("newer")
        iopub.publisher.publish("stream", {"text": "shown"}, {}, [])
        assert not iopub.publisher.line.show("too late")
    assert iopub.kinds == ["display_data", "update_display_data", "clear_output", "stream"]
    ids = {content["transient"]["display_id"] for _kind, content in iopub.sent[:2]}
    assert len(ids) == 1 and iopub.on_page == "shown"
    # Nothing of it is for the journal.
    assert iopub.watched == [("waits", "stream")]


@pytest.mark.parametrize("way", ["a thread prints", "output of an unknown origin"])
async def test_line_takes_nothing_away_that_came_while_it_stood(way: str) -> None:
    iopub = Iopub()
    with wait_told(iopub.publisher.line, 0.0, AT_ONCE_S, dict):
        await asyncio.wait_for(iopub.arrived.wait(), LIMIT_S)
        if way == "a thread prints":
            iopub.thread_prints("from elsewhere\n")
        else:
            message = {"type": "stream", "name": "stdout", "text": "from elsewhere\n"}
            publish_output(iopub.publishers.late("unknown"), message)
        assert iopub.publisher.line.show("newer")
    assert iopub.kinds[-1] == "update_display_data" and iopub.sent[-1][1]["data"] == {}
    assert iopub.on_page.strip() == "from elsewhere"


def test_line_does_not_begin_where_something_stands() -> None:
    iopub = Iopub()
    iopub.thread_prints("under another cell", "earlier")
    assert iopub.publisher.line.show("alone here")
    for stands in (True, False):
        iopub.thread_prints("first")
        if not stands:
            iopub.publishers.publish_under({"msg_id": "waits"}, "clear_output", {"wait": False}, {}, [])
        line = iopub.publishers.late("").line
        assert line.show("second") is not stands


def test_requests_that_are_remembered_are_limited() -> None:
    shown = ShownOutputs()
    for number in range(2 * REQUESTS_MAX):
        shown.take(f"r-{number}", "stream", {})
    assert shown.under({"msg_id": f"r-{2 * REQUESTS_MAX - 1}"}) and not shown.under({"msg_id": "r-0"})
    assert len(shown._requests) == REQUESTS_MAX


def test_long_wait_is_told_rarely_and_each_new_stage_at_once() -> None:
    updates, queue = WaitUpdates(), {"queue": {"position": 1}}
    told = [waited_s for waited_s in range(12 * 3600) if updates.text(queue, float(waited_s))]
    assert told[:61] == list(range(61)) and 70 in told and 75 not in told
    assert len(told) < 60 + 60 + 12 * 60
    lease = {**queue, "lease": {"host_id": "h1"}}
    assert "on h1" in updates.text(lease, 43200.5) and not updates.text(lease, 43201.5)


@pytest.mark.parametrize("after_s", [0.0, LIMIT_S])
async def test_cell_that_waits_no_longer_shows_no_line(after_s: float) -> None:
    iopub = Iopub()
    with wait_told(iopub.publisher.line, 0.0, after_s, dict):
        await asyncio.sleep(0)
    assert iopub.sent == []


# Of an earlier cell; prints once the file is there.
THREAD = (
    "import os, threading, time\n"
    "def wait_and_print():\n    while not os.path.exists({path!r}): time.sleep(0.005)\n    print('from a thread')\n"
    "threading.Thread(target=wait_and_print, daemon=True).start()"
)


def test_line_is_shown_by_a_page_that_has_no_other_way(notebook: Any, daemon: Any, tmp_path: Path) -> None:
    async def play(run: Any) -> Any:
        await run.event("queue", position=2, reason="all GPUs are busy")
        await run.interrupts.get()
        await run.event("stage", stage=6, worker_id="w-1", pid=4242, elapsed_ms=1.0)
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["waits"] = play
    notebook.ok(SHOWS_WAIT.format(after_s=AT_ONCE_S))

    def shown_until(text: str) -> None:
        while True:
            content = notebook.client.get_iopub_msg(timeout=LIMIT_S)["content"]
            if text in content.get("data", content).get("text/plain", content.get("text", "")):
                return

    try:
        sent = notebook.send("%%gpu\nwaits", cellId="c-1")
        shown_until("place 2: all GPUs are busy")
        notebook.control("interrupt_request", {})()
        assert notebook.finish(sent).kinds[-1] == "clear_output"
        # What an earlier cell's thread prints meanwhile stays.
        go = tmp_path / "go"
        notebook.ok(THREAD.format(path=str(go)))
        sent = notebook.send("%%gpu\nwaits", cellId="c-1")
        shown_until("place 2: all GPUs are busy")
        go.touch()
        shown_until("from a thread")
        notebook.control("interrupt_request", {})()
        assert "clear_output" not in notebook.finish(sent).kinds
        # Nobody reads it in a batch run, nor where the page's own line tells.
        daemon.plays.clear()
        assert notebook.ok("%%gpu\n1", cellId="c-1", looseleaf={"priority": "batch"}).kinds == ["execute_result"]
        assert notebook.ok("%%gpu\n1").kinds == ["execute_result"]
        notebook.control(PREPARE_REQUEST, {"cell_id": "c", "source": "%%gpu\n1", "page": "page-1"})()
        assert notebook.ok("%%gpu\n1", cellId="c-1").kinds == ["execute_result"]
    finally:
        notebook.ok(SHOWS_WAIT.format(after_s=0.0))
