from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from looseleaf.services.worker_daemon.core.region_table import RegionKey, RegionTable, Slot

KEYS: list[RegionKey] = [(bytes([number]) * 16, 100 + number) for number in range(6)]
keys = st.sampled_from(KEYS)
owners = st.sampled_from(["kernel", "worker"])


class TableMachine(RuleBasedStateMachine):
    """The table beside a plain model: a slot in use is never handed back."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RegionTable()
        self.free = [Slot(0, index) for index in range(8)]
        self.slots: dict[RegionKey, Slot] = {}
        self.pins: dict[RegionKey, set[str]] = {}
        self.committed: set[RegionKey] = set()
        self.elsewhere: set[RegionKey] = set()

    def _forget(self, key: RegionKey) -> None:
        self.free.append(self.slots.pop(key))
        self.pins.pop(key)
        self.committed.discard(key)
        self.elsewhere.discard(key)

    @rule(key=keys, owner=owners)
    def put(self, key: RegionKey, owner: str) -> None:
        if self.table.pin(key, owner) is None:
            assert key not in self.slots
            slot = self.free.pop()
            self.table.add(key, slot, owner=owner, committed=False)
            self.slots[key] = slot
            self.pins[key] = set()
        self.pins[key].add(owner)

    @rule(key=keys)
    def commit(self, key: RegionKey) -> None:
        self.table.commit([key])
        if key in self.slots:
            self.committed.add(key)

    @rule(key=keys)
    def keep_elsewhere(self, key: RegionKey) -> None:
        self.table.keep_elsewhere([key])
        if key in self.slots:
            self.elsewhere.add(key)

    @rule(owner=owners)
    def unpin(self, owner: str) -> None:
        freed = self.table.unpin(owner)
        expected = []
        for key in list(self.slots):
            if owner in self.pins[key]:
                self.pins[key].discard(owner)
                if not self.pins[key] and key not in self.committed and key not in self.elsewhere:
                    expected.append(self.slots[key])
                    self._forget(key)
        assert sorted(freed) == sorted(expected)

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        evicted = self.table.evict(count)
        assert len(evicted) <= count
        for key, slot in evicted:
            assert self.slots[key] == slot and not self.pins[key] and key in self.elsewhere
            self._forget(key)

    @invariant()
    def slots_agree(self) -> None:
        assert len(self.table) == len(self.slots)
        assert len(set(self.free) | set(self.slots.values())) == 8


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRegionTable = TableMachine.TestCase


def test_evict_takes_least_recently_used_first() -> None:
    table = RegionTable()
    for index, key in enumerate(KEYS[:3]):
        table.add(key, Slot(0, index), owner=None, committed=True)
    table.keep_elsewhere(KEYS[:3])
    table.slot_of(KEYS[0])
    assert [key for key, _slot in table.evict(2)] == [KEYS[1], KEYS[2]]


def test_evict_keeps_what_only_this_host_has() -> None:
    table = RegionTable()
    table.add(KEYS[0], Slot(0, 0), owner=None, committed=True)
    assert table.evict(5) == []
