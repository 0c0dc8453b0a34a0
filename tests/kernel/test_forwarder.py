"""Output messages of a worker as Jupyter messages."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.errors import InvalidArgument, PreconditionFailed
from looseleaf.kernel.forwarder import error_output, error_reply, error_text, publish_output


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], dict[str, Any], list[bytes]]] = []

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        self.sent.append((msg_type, content, metadata, buffers))


def test_publish_display_keeps_its_metadata_in_the_content() -> None:
    recorder = Recorder()
    message = {"type": "display_data", "data": {"text/plain": "x"}, "metadata": {"w": 1}, "transient": {}}
    publish_output(recorder, message)
    content = {"data": {"text/plain": "x"}, "metadata": {"w": 1}, "transient": {}}
    assert recorder.sent == [("display_data", content, {}, [])]


def test_publish_comm_puts_metadata_and_buffers_beside_the_content() -> None:
    recorder = Recorder()
    message = {"type": "comm_open", "comm_id": "c", "data": {}, "metadata": {"version": "2"}, "buffers": [b"raw"]}
    publish_output(recorder, message)
    assert recorder.sent == [("comm_open", {"comm_id": "c", "data": {}}, {"version": "2"}, [b"raw"])]


@pytest.mark.parametrize("message", [{}, {"type": "status"}, {"type": ["stream"][0] + "s"}, {"type": None}])
def test_publish_unknown_type_is_refused(message: dict[str, Any]) -> None:
    recorder = Recorder()
    with pytest.raises(InvalidArgument, match="OUTPUT_UNKNOWN"):
        publish_output(recorder, message)
    assert recorder.sent == []


def test_error_output_and_reply_say_the_same() -> None:
    output = error_output("NO_CLUSTER", "nobody answers")
    assert output["traceback"] == ["NO_CLUSTER: nobody answers", "See docs/errors.md#NO_CLUSTER"]
    assert error_output("KeyboardInterrupt", "")["traceback"] == ["KeyboardInterrupt: "]
    expected = {"status": "error", "ename": "NO_CLUSTER", "evalue": "nobody answers", "traceback": output["traceback"]}
    assert error_reply(output) == expected
    assert error_text(PreconditionFailed("ONLY_A_REASON")) == "ONLY_A_REASON"
