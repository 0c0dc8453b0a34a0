from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from looseleaf.ids import SessionId
from looseleaf.services.worker_daemon.core import unit_cache
from looseleaf.services.worker_daemon.core.unit_cache import ENTRY_BYTES, UnitCache

A, B = SessionId("s-a"), SessionId("s-b")


def test_a_session_never_sees_the_units_of_another() -> None:
    cache = UnitCache()
    cache.keep(A, [(b"h", b"data")])
    assert cache.find(B, [b"h"]) == {} and cache.find(A, [b"h", b"other"]) == {b"h": b"data"}


def test_the_least_recently_used_go_first() -> None:
    cache = UnitCache(bytes_max=3 * (ENTRY_BYTES + 10))
    cache.keep(A, [(bytes([number]), bytes(10)) for number in range(3)])
    cache.find(A, [b"\x00"])
    cache.keep(A, [(b"\x03", bytes(10))])
    assert set(cache.find(A, [bytes([number]) for number in range(4)])) == {b"\x00", b"\x02", b"\x03"}


def test_a_large_unit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_cache, "UNIT_BYTES_MAX", 8)
    cache = UnitCache()
    cache.keep(A, [(b"h", bytes(9))])
    assert cache.find(A, [b"h"]) == {} and cache.size_bytes == 0


class CacheMachine(RuleBasedStateMachine):
    """Whatever is kept and found: within its limit, and never other bytes than those kept under the hash."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = UnitCache(bytes_max=2_000)
        self.kept: dict[tuple[SessionId, bytes], bytes] = {}

    @rule(session=st.sampled_from([A, B]), numbers=st.lists(st.integers(0, 9), max_size=6))
    def keep(self, session: SessionId, numbers: list[int]) -> None:
        units = [(bytes([number]), bytes([number]) * (number * 40)) for number in numbers]
        self.cache.keep(session, units)
        self.kept.update({(session, unit_hash): data for unit_hash, data in units})

    @rule(session=st.sampled_from([A, B]), numbers=st.lists(st.integers(0, 9), max_size=6))
    def find(self, session: SessionId, numbers: list[int]) -> None:
        for unit_hash, data in self.cache.find(session, [bytes([number]) for number in numbers]).items():
            assert self.kept[session, unit_hash] == data

    @invariant()
    def within_its_limit(self) -> None:
        sizes = [len(data) + ENTRY_BYTES for data in self.cache._units.values()]
        assert sum(sizes) == self.cache.size_bytes <= self.cache.bytes_max


TestCacheMachine = CacheMachine.TestCase
