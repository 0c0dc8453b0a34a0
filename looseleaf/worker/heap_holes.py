"""Fills the holes in a zygote's heap, so that what its workers make lies together on few pages.

CPython's allocator of small objects serves a new one from a partly used pool first. After hundreds of imports such free
blocks are spread over the whole heap, and in a forked process the first write to each page copies it: some hundred
pages, a few microseconds each, for a handful of objects on each. With the holes filled new objects take pools of their
own. It costs two pools of each size, 1 MiB in all, besides memory that the zygote had already.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import islice, pairwise, repeat, starmap
from operator import neg
from typing import Final

from looseleaf.units import KIB, MIB

# Blocks come in steps of 16 bytes up to 512; larger ones are malloc's (Objects/obmalloc.c).
_STEP_BYTES: Final = 16
_BLOCK_BYTES_MAX: Final = 512
_POOL_BYTES: Final = 16 * KIB
_POOL_HEAD_BYTES: Final = 48
# Where something else took a block of a fresh pool meanwhile.
_GAPS_MAX: Final = 2
# Of blocks of one size; the holes that are left then stay, those of the other sizes too.
_FILLING_BYTES_MAX: Final = 16 * MIB
# Far more than lie in holes where none is beside another.
_TRIED_BYTES: Final = 1 * MIB
_BYTES_HEAD: Final = sys.getsizeof(b"")

_filling: list[object] = []


def fill_holes() -> int:
    """Fills the free blocks of all pools that are partly used, for good; how many. Call it after a collection.

    None with another allocator than the plain one, as `PYTHONMALLOC`, `PYTHONDEVMODE` or a debug build bring: no pool
    is known there, and the filling would not end.
    """
    if not _has_plain_pools():
        return 0
    before = len(_filling)
    for block_bytes in range(_STEP_BYTES, _BLOCK_BYTES_MAX + 1, _STEP_BYTES):
        if not _fill(block_bytes):
            break
    return len(_filling) - before


def _has_plain_pools() -> bool:
    """Whether two of some blocks lie side by side: none do that carry something more than their bytes."""
    blocks = _blocks(_BLOCK_BYTES_MAX, _TRIED_BYTES // _BLOCK_BYTES_MAX)
    return any(id(after) - id(before) == _BLOCK_BYTES_MAX for before, after in pairwise(blocks))


def _fill(block_bytes: int) -> bool:
    """Takes blocks until the last ones lie side by side: of a fresh pool, which comes after all others.

    False if they did not before `_FILLING_BYTES_MAX` were taken.
    """
    of_a_pool = _POOL_BYTES // block_bytes
    for _ in range(_FILLING_BYTES_MAX // (2 * _POOL_BYTES)):
        # Looked at when all are there: a number for an address is a small object, too.
        blocks = _blocks(block_bytes, 2 * of_a_pool)
        _filling.extend(blocks)
        last = [id(block) for block in islice(blocks, of_a_pool, None)]
        if sum(_is_gap(before, after, block_bytes) for before, after in pairwise(last)) <= _GAPS_MAX:
            return True
    return False


def _is_gap(before: int, after: int, block_bytes: int) -> bool:
    return after - before != block_bytes and after % _POOL_BYTES != _POOL_HEAD_BYTES


def _blocks(block_bytes: int, count: int) -> deque[object]:
    # In a deque: a list that grows would take blocks of these sizes, too.
    if block_bytes == _STEP_BYTES:
        return deque(starmap(object, repeat((), count)))
    if block_bytes < _BYTES_HEAD + 2:
        # Between an object and the smallest bytes that are made anew, of two: a float that is made anew.
        return deque(map(neg, repeat(0.5, count)))
    return deque(map(bytes, repeat(block_bytes - _BYTES_HEAD, count)))
