from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from looseleaf.logs import TEXT_CHARS_MAX, carried_ids, configure_logs, get_logger, log_context, own_ids


@pytest.fixture
def restored() -> Iterator[None]:
    """Other tests get the logging that they had."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)


@pytest.fixture
def stream(restored: None) -> io.StringIO:
    text = io.StringIO()
    configure_logs("store", "info", text)
    return text


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_event_is_one_json_line_with_service_level_and_context(stream: io.StringIO) -> None:
    with log_context(session="s-1", worker="", epoch=3):
        get_logger().info("worker_prepared", size_bytes=5)
    get_logger().debug("too_fine")
    (event,) = lines(stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "worker_prepared", "level": "info", "service": "store", "session": "s-1", "epoch": 3, "size_bytes": 5,
    }


def test_host_of_the_process_is_in_every_event_that_names_no_other(restored: None) -> None:
    text = io.StringIO()
    configure_logs("daemon", "info", text, host="h0")
    get_logger().info("worker_prepared")
    get_logger().info("regions_fetched", host="h1")
    logging.getLogger("asyncio").warning("odd")
    assert [event["host"] for event in lines(text)] == ["h0", "h1", "h0"]
    with log_context(session="s-1", epoch=2, request="r-1"):
        assert carried_ids() == {"session": "s-1", "host": "h0"}
    configure_logs("store", "info", text)
    assert own_ids() == carried_ids() == {}


def test_terminal_gets_text_and_a_file_gets_json(restored: None) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    configure_logs("store", "info", terminal)
    get_logger().info("store_opened", sessions=3)
    assert "store_opened" in terminal.getvalue() and "{" not in terminal.getvalue()


def test_cell_text_values_and_tokens_are_withheld(stream: io.StringIO) -> None:
    get_logger().info("cell_ran", source="x = 1", token="abc", value=3, note="y" * 2 * TEXT_CHARS_MAX)
    (event,) = lines(stream)
    assert [event[key] for key in ("source", "token", "value")] == ["<withheld>"] * 3
    assert len(event["note"]) == TEXT_CHARS_MAX + 3


def test_unknown_context_key_is_refused() -> None:
    with pytest.raises(ValueError, match="source"), log_context(source="x"):
        pass


def test_exception_and_standard_logging_are_json_lines_too(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("planted")
    except RuntimeError:
        get_logger().exception("task_failed")
    logging.getLogger("asyncio").warning("odd %s", "thing")
    first, second = lines(stream)
    assert "RuntimeError: planted" in first["exception"]
    assert (second["event"], second["level"], second["service"]) == ("odd thing", "warning", "store")


def test_full_disk_costs_the_line_and_not_the_work_that_logged_it(restored: None) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        configure_logs("store", "info", io.TextIOWrapper(full, write_through=True))
        for write in (get_logger().info, get_logger().exception):
            write("commit_refused", reason="STORE_FULL")
