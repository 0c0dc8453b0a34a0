"""What stands behind `%%gpu`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.recipe.gpu_line import GPU_COUNT_MAX, KEEP_S_MAX, GpuLine, parse_gpu_line


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", GpuLine()),
        ("2  # both", GpuLine(2)),
        ("--count 3", GpuLine(3)),
        ("--keep 60s", GpuLine(keep_s=60.0)),
        ("4 --mem 20GB --keep=2m", GpuLine(4, 20 << 30, 120.0)),
        ("--mem 1.5GiB", GpuLine(memory_bytes=3 << 29)),
        ("0", GpuLine(1)),
        ("99999", GpuLine(GPU_COUNT_MAX)),
        ("--keep 9h", GpuLine(keep_s=KEEP_S_MAX)),
        ("--keep soon", GpuLine(problem="--keep soon")),
        ("--mem", GpuLine(problem="--mem")),
        ("--fast 1", GpuLine(problem="--fast 1")),
        ("two", GpuLine(problem="two")),
    ],
)
def test_line_is_read(line: str, wanted: GpuLine) -> None:
    assert parse_gpu_line(line) == wanted


@given(st.text(max_size=30))
def test_any_line_is_read(line: str) -> None:
    found = parse_gpu_line(line)
    assert 1 <= found.count <= GPU_COUNT_MAX and 0 <= (found.keep_s or 0) <= KEEP_S_MAX and found.memory_bytes >= 0


def test_memory_that_is_asked_for_counts_as_the_cells(ask) -> None:
    recipe = ask("%%gpu 2 --mem 40GB --keep 5\nx = 1").recipe
    assert (recipe.gpu_count, recipe.device_bytes) == (2, 40 << 30)
