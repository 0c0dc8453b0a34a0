"""Memory that is mapped before it is needed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from looseleaf.checkpoint.ahead import Ahead, Warming
from looseleaf.dirty_tracker import MappedRegions, Memfd
from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.ids import PayloadId
from looseleaf.units import REGION_BYTES

LIMIT_S = 30.0


def mappings(count: int) -> list[MappedRegions]:
    with Memfd.create("warming", count * REGION_BYTES) as memory:
        return [MappedRegions([(memory.fd, number * REGION_BYTES, REGION_BYTES)]) for number in range(count)]


def test_warming_skips_what_is_closed_and_what_is_no_mapping() -> None:
    mapped = mappings(3)
    mapped[1].close()
    assert Warming([*mapped, b"bytes"]).join(LIMIT_S)


def test_warming_keeps_no_mapping_alive() -> None:
    mapped = mappings(2)
    warming = Warming(mapped)
    assert warming.join(LIMIT_S)
    references = [weakref.ref(one) for one in mapped]
    mapped.clear()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_warming_that_is_stopped_ends() -> None:
    warming = Warming(mappings(8))
    warming.stop()
    assert warming.join(LIMIT_S)


def test_all_goes_with_the_last_name() -> None:
    ahead = Ahead({"a", "b"}, {b"h": b"unit"}, {PayloadId(1): object()}, {PayloadId(1): ()})
    ahead.asked_for(["a", "c"])
    assert (len(ahead.units), len(ahead.memory)) == (1, 1)
    ahead.asked_for(["b"])
    assert (ahead.units, ahead.memory, ahead.regions) == ({}, {}, {})


@pytest.mark.parametrize("error", [None, Unavailable("DAEMON_GONE", "away")])
def test_memory_that_is_given_up_is_unmapped_before_its_host_hears_of_it_once(error: LooseLeafError | None) -> None:
    mapped = mappings(2)
    told: list[Any] = []

    class IO:
        def unmap_regions(self, refs: Any) -> None:
            told.append((refs, [one.closed for one in mapped]))
            if error is not None:
                raise error

    io: Any = IO()
    one, two = PayloadId(1), PayloadId(2)
    shows: Any = {one: ("r1", "r1"), two: ("r2",)}
    ahead = Ahead({"a"}, {}, dict(zip((one, two), mapped, strict=True)), shows)
    ahead.unmap(io)
    # The first is taken out: somebody uses it.
    del ahead.memory[one]
    ahead.asked_for(["a"])
    ahead.unmap(io)
    ahead.unmap(io)
    assert told == [(["r2"], [False, True])]
