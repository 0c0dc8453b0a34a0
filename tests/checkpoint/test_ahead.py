"""Memory that is mapped before it is needed."""

from __future__ import annotations

import gc
import weakref

from looseleaf.checkpoint.ahead import Ahead, Warming
from looseleaf.dirty_tracker import MappedRegions, Memfd
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
