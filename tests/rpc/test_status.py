from __future__ import annotations

import json

from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ERRORS_BY_CODE, CapacityExceeded, Conflict, InvalidArgument
from looseleaf.rpc.status import FIELDS_BYTES_MAX, MESSAGE_CHARS_MAX, from_status, to_status

names = st.from_regex(r"[a-z][a-z_]{0,20}", fullmatch=True).filter(
    lambda name: name not in ("message_empty", "fields_left_out", "retry_after_s"))
plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=50) | st.floats(allow_nan=False)
values = plain | st.lists(plain, max_size=4) | st.dictionaries(st.text(max_size=5), plain, max_size=3)


@given(
    st.sampled_from(sorted(ERRORS_BY_CODE)), st.from_regex(r"[A-Z][A-Z_]{0,30}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=100), st.dictionaries(names, values, max_size=5),
)
def test_status_round_trip_keeps_class_reason_message_and_fields(
    code: str, reason: str, message: str, fields: dict[str, object],
) -> None:
    error = ERRORS_BY_CODE[code](reason, message, **json.loads(json.dumps(fields)))
    again = from_status(to_status(error))
    assert again is not None
    assert type(again) is type(error)
    again.fields.pop("retry_after_s", None)
    assert (again.reason, again.message, again.fields) == (error.reason, error.message, error.fields)


def test_capacity_exceeded_carries_retry_info() -> None:
    status = to_status(CapacityExceeded("NO_GPU_FREE", "wait", retry_after_s=2.5))
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details if detail.Is(retry.DESCRIPTOR))
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5
    again = from_status(status)
    assert again is not None
    assert again.fields["retry_after_s"] == 2.5


def test_oversized_error_is_cut_to_what_trailers_hold() -> None:
    error = InvalidArgument("BIG", "x" * 100_000, first="kept", large="y" * 100_000, last="kept")
    again = from_status(to_status(error))
    assert again is not None
    assert len(again.message) == MESSAGE_CHARS_MAX
    assert again.fields["first"] == "kept"
    assert again.fields["fields_left_out"] == 2
    assert to_status(error).ByteSize() < FIELDS_BYTES_MAX + MESSAGE_CHARS_MAX + 1_000


def test_status_of_somebody_else_is_not_ours() -> None:
    status = to_status(Conflict("MANIFEST_MOVED", "x"))
    info = error_details_pb2.ErrorInfo(reason="QUOTA", domain="example.com")
    del status.details[:]
    status.details.add().Pack(info)
    assert from_status(status) is None
