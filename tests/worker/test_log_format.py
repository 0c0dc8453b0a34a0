from __future__ import annotations

import logging
import sys

from looseleaf.errors import Corrupt
from looseleaf.protocol import fields
from looseleaf.worker.log_format import LogFormat


def logged(error: BaseException) -> str:
    record = logging.LogRecord("looseleaf.worker", logging.ERROR, "", 0, "request_failed", (), None)
    record.exc_info = (type(error), error, error.__traceback__)
    return LogFormat().format(record)


def test_exception_of_a_cell_shows_neither_its_text_nor_its_line() -> None:
    try:
        exec(compile("secret_name = 'my password'\nraise ValueError(secret_name)", "<ipython-input-1>", "exec"), {})
    except ValueError as error:
        text = logged(error)
    assert text == "ERROR looseleaf.worker request_failed\nValueError"


def test_error_of_ours_shows_our_frames_and_its_text() -> None:
    try:
        fields.text({}, "session_id")
    except Exception as error:
        text = logged(error)
    assert "fields.py:" in text and "in text" in text and "FIELD_MALFORMED" in text
    assert "test_log_format" not in text


def test_exception_without_a_traceback_is_one_line() -> None:
    assert logged(Corrupt("CHECKSUM_MISMATCH", "bad")).splitlines()[1:] == ["CHECKSUM_MISMATCH: bad"]
    assert sys.exc_info() == (None, None, None)
