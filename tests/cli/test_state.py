"""Tables of saved variables."""

from __future__ import annotations

import pytest

from looseleaf.cli.state import VALUE_CHARS_MAX, shortened


@pytest.mark.parametrize("size", [0, VALUE_CHARS_MAX, VALUE_CHARS_MAX + 1, 1000])
def test_value_in_a_table_is_cut_with_a_mark_and_only_if_long(size: int) -> None:
    text = "x" * size
    shown = shortened(text)
    assert len(shown) <= VALUE_CHARS_MAX
    assert shown == text if size <= VALUE_CHARS_MAX else shown.endswith("x…") and text.startswith(shown[:-1])
