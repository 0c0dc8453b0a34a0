"""Holes in the heap of small objects, each time in a process of its own: what else lies in the heap counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MAKE_HOLES = """
import sys
from looseleaf.worker import heap_holes
from looseleaf.worker.heap_holes import fill_holes

PAGE_BYTES = 4096
content_bytes = {size} - sys.getsizeof(b"")
made = [bytes(content_bytes) for _ in range(4_000)]
pages_of_holes = {{id(one) // PAGE_BYTES for one in made}}
kept = made[::7]
holes = len(made) - len(kept)
del made
"""
LIE_TOGETHER = """
filled = fill_holes()
new = [bytes(content_bytes) for _ in range(20)]
pages = [id(one) // PAGE_BYTES for one in new]
# A few blocks became free while the others were filled.
fresh = [page for page in pages if page not in pages_of_holes]
assert len(fresh) >= 15, (pages, pages_of_holes)
assert len(set(fresh)) <= 20 * {size} // PAGE_BYTES + 2, pages
# What there is to fill where nothing is made in between: a few pools of each size.
again = fill_holes()
assert again < 6 * sum(16 * 1024 // size for size in range(16, 513, 16)), again
assert filled - again > holes // 2, (filled, again, holes)
"""
NOTHING = """
assert fill_holes() == 0
assert not heap_holes._filling
"""


def run(text: str, size: int, **env: str) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONMALLOC", "PYTHONDEVMODE")}
    done = subprocess.run(
        [sys.executable, "-c", (MAKE_HOLES + text).format(size=size)], check=False, capture_output=True, text=True,
        timeout=120, env={**plain, **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [48, 112, 512])
def test_objects_made_after_filling_lie_together(size: int) -> None:
    run(LIE_TOGETHER, size)


@pytest.mark.parametrize(
    "env", [{"PYTHONMALLOC": "malloc"}, {"PYTHONMALLOC": "pymalloc_debug"}, {"PYTHONDEVMODE": "1"}], ids=str
)  # fmt: skip
def test_nothing_is_filled_where_blocks_have_other_sizes(env: dict[str, str]) -> None:
    run(NOTHING, 112, **env)


def test_filling_ends_with_the_first_size_whose_holes_have_no_end() -> None:
    run("""
heap_holes._is_gap = lambda *_: True
heap_holes._FILLING_BYTES_MAX = 4 * heap_holes._POOL_BYTES
assert 0 < fill_holes() <= 4 * heap_holes._POOL_BYTES // 16
""", 112)
