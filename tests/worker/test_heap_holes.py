"""Holes in the heap of small objects."""

from __future__ import annotations

import pytest

from looseleaf.worker.heap_holes import fill_holes

PAGE_BYTES = 4096
HEAD_BYTES = 33


@pytest.mark.parametrize("size", [48, 112, 512])
def test_objects_made_after_filling_lie_together(size: int) -> None:
    made = [bytes(size - HEAD_BYTES) for _ in range(4_000)]
    pages_of_holes = {id(one) // PAGE_BYTES for one in made}
    kept = made[::7]
    del made
    assert fill_holes() > len(kept)
    new = [bytes(size - HEAD_BYTES) for _ in range(20)]
    pages = [id(one) // PAGE_BYTES for one in new]
    # A few blocks became free while the others were filled.
    fresh = [page for page in pages if page not in pages_of_holes]
    assert len(fresh) >= 15
    assert len(set(fresh)) <= 20 * size // PAGE_BYTES + 2


def test_filling_twice_takes_a_few_pools_more_at_most() -> None:
    fill_holes()
    blocks_of_a_pool = [16 * 1024 // size for size in range(16, 513, 16)]
    assert fill_holes() < 6 * sum(blocks_of_a_pool)
