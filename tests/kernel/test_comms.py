"""What stands for comms of workers: their last state, within limits."""

from __future__ import annotations

from typing import Any

import pytest
from comm.base_comm import CommManager

from looseleaf.kernel import comms
from looseleaf.kernel.comms import WorkerComms
from looseleaf.kernel.forwarder import Publishers


class Page:
    """Hears what the kernel sends and follows what a worker sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], list[bytes]]] = []
        self.manager = CommManager()
        self.shadows = WorkerComms(self.manager, lambda kind, content, _m, buffers: self.sent.append(
            (kind, content, list(buffers))
        ))  # fmt: skip
        self.publisher = Publishers(lambda *_args: None, self.shadows.follow, dict).request({})

    def worker(self, kind: str, comm_id: str, buffers: list[bytes] | None = None, **data: Any) -> None:
        content = {"comm_id": comm_id, "data": data, "target_name": "jupyter.widget"}
        self.publisher.publish(kind, content, {}, buffers or [])

    def open(self, comm_id: str, **state: Any) -> None:
        self.worker("comm_open", comm_id, state=state, buffer_paths=[])


@pytest.fixture
def page() -> Page:
    return Page()


def test_last_state_is_every_update_together(page: Page) -> None:
    page.open("c", value=1, label="a")
    page.worker("comm_msg", "c", method="update", state={"value": 2}, buffer_paths=[])
    page.worker("comm_msg", "c", method="echo_update", state={"label": "b"}, buffer_paths=[])
    page.worker("comm_msg", "c", method="custom", state={"value": 9})
    page.worker("comm_msg", "c", [b"raw"], method="update", state={}, buffer_paths=[["image"]])
    shadow = page.shadows.get("c")
    assert shadow is not None and page.shadows.answer(shadow, {"method": "request_state"}) == ""
    (kind, content, buffers), = page.sent
    assert kind == "comm_msg" and buffers == [b"raw"]
    assert content["data"] == {"method": "update", "state": {"value": 2, "label": "b"}, "buffer_paths": [["image"]]}


def test_change_by_the_page_is_taken_back(page: Page) -> None:
    page.open("c", value=1)
    shadow = page.shadows.get("c")
    assert shadow is not None
    assert "no variable holds the widget" in page.shadows.answer(
        shadow, {"method": "update", "state": {"value": 5, "unknown": 1}}
    )
    assert page.sent[-1][1]["data"]["state"] == {"value": 1}


def test_comm_that_its_worker_closed_is_forgotten_without_a_word(page: Page) -> None:
    page.open("c", value=1)
    page.worker("comm_close", "c")
    assert page.shadows.get("c") is None and page.manager.get_comm("c") is None and page.sent == []


def test_number_of_shadows_has_a_limit(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comms, "SHADOWS_MAX", 3)
    for number in range(5):
        page.open(f"c{number}", value=number)
    assert [shadow.comm_id for shadow in page.shadows.all()] == ["c2", "c3", "c4"]
    assert sorted(page.manager.comms) == ["c2", "c3", "c4"] and page.sent == []


def test_memory_of_shadows_has_a_limit(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comms, "SHADOW_BYTES_MAX", 10_000)
    page.open("old", value="x" * 6000)
    page.open("small", value=1)
    page.worker("comm_msg", "small", method="update", state={"value": "y" * 6000}, buffer_paths=[])
    assert [shadow.comm_id for shadow in page.shadows.all()] == ["small"]


def test_widget_that_came_back_replaces_its_shadow(page: Page) -> None:
    page.open("c", value=1)
    page.manager.comms["c"] = object()
    assert page.shadows.get("c") is None and page.shadows.all() == []
    assert "c" in page.manager.comms
