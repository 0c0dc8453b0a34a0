from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ERRORS_BY_CODE, Internal, LooseLeafError, from_wire, to_wire

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=20)


@given(
    st.sampled_from(sorted(ERRORS_BY_CODE)), st.text(max_size=10), st.text(max_size=10),
    st.dictionaries(st.sampled_from(["reason", "message", "self", "cls", "fields", "n"]), PLAIN),
)
def test_error_survives_the_wire_and_pickling_whatever_its_fields_are_called(
    code: str, reason: str, message: str, fields: dict[str, object],
) -> None:
    error = ERRORS_BY_CODE[code](reason, message, **fields)
    for again in (from_wire(to_wire(error)), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert (again.reason, again.message, again.fields) == (reason, message, fields)
        assert str(again) == str(error)


@pytest.mark.parametrize("wire", [{}, {"code": "ODD", "reason": "R"}, {"code": 3, "fields": [1]}])
def test_wire_that_is_not_ours_still_gives_an_error(wire: dict[str, object]) -> None:
    error = from_wire(wire)
    assert type(error) is Internal
    assert error.reason == wire.get("reason", "BUG")


def test_codes_name_each_class_once() -> None:
    assert len(ERRORS_BY_CODE) == len(LooseLeafError.__subclasses__())
