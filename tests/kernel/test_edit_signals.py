"""Which messages of a page are taken."""

from __future__ import annotations

from typing import Any

import pytest

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.edit_signals import ID_CHARS_MAX, SOURCE_CHARS_MAX, EditSignal

GOOD: dict[str, Any] = {
    "v": 1, "kind": "paste", "cell_id": "c", "source": "x", "edit_sequence": 7, "device_override": "gpu", "page": "p",
}  # fmt: skip


def test_signal_of_a_page_is_read_whole() -> None:
    assert EditSignal.of(GOOD) == EditSignal("paste", "c", "x", 7, "gpu", "p")


def test_signal_needs_only_a_text() -> None:
    assert EditSignal.of({"source": "x"}) == EditSignal("edit", "", "x", 0, "", "")
    assert EditSignal.of({"kind": "blur"}).source == ""


@pytest.mark.parametrize("kind", ["edit", "focus", "paste"])
def test_signal_that_prepares_has_a_text(kind: str) -> None:
    assert EditSignal.of({"kind": kind, "source": ""}).prepares
    with pytest.raises(LooseLeafError, match="FIELD_MALFORMED"):
        EditSignal.of({"kind": kind})


@pytest.mark.parametrize("key", sorted(GOOD))
@pytest.mark.parametrize("bad", [None, 1.5, [1], {"a": 1}, True])
def test_signal_with_a_field_of_a_wrong_type_is_refused_by_name(key: str, bad: Any) -> None:
    with pytest.raises(LooseLeafError, match=f"FIELD_MALFORMED.*{key}"):
        EditSignal.of({**GOOD, key: bad})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, "PROTOCOL_VERSION"),
        ({"kind": "run"}, "FIELD_MALFORMED"),
        ({"edit_sequence": -1}, "FIELD_MALFORMED"),
        ({"cell_id": "c" * (ID_CHARS_MAX + 1)}, "FIELD_MALFORMED"),
        ({"page": "c" * (ID_CHARS_MAX + 1)}, "FIELD_MALFORMED"),
        ({"source": "x" * (SOURCE_CHARS_MAX + 1)}, "CELL_TOO_LARGE"),
    ],
)
def test_signal_beyond_the_limits_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(LooseLeafError) as caught:
        EditSignal.of({**GOOD, **change})
    assert caught.value.reason == reason
