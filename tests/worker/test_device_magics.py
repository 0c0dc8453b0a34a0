from __future__ import annotations

import pytest

from looseleaf.worker.device_magics import take_mark_off


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1\n", "x = 1\n"),
        ("%%gpu\nx = 1\n", "#\nx = 1\n"),
        ("%%cpu\nx = 1\n", "#\nx = 1\n"),
        ("%%gpu --count 2\nx = 1\n", "#\nx = 1\n"),
        ("\n\n%%gpu\nx = 1\n", "\n\n#\nx = 1\n"),
        ("%%gpu\n%%time\nx = 1\n", "%%time\nx = 1\n"),
        ("%%gpu\n\n%%time\nx = 1\n", "\n%%time\nx = 1\n"),
        ("%%gpu\n%%cpu\nx = 1\n", "#\nx = 1\n"),
        ("%%gpu", "#\n"),
        ("%%gpu2\nx = 1\n", "%%gpu2\nx = 1\n"),
        ("%gpu\nx = 1\n", "%gpu\nx = 1\n"),
        ("x = 1\n%%gpu\n", "x = 1\n%%gpu\n"),
        ("%%time\n%%gpu\nx = 1\n", "%%time\n%%gpu\nx = 1\n"),
        ("", ""),
        ("\n", "\n"),
    ],
)
def test_take_mark_off_leaves_the_rest_of_the_cell(cell: str, expected: str) -> None:
    assert "".join(take_mark_off(cell.splitlines(keepends=True))) == expected
