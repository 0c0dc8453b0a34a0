from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from looseleaf.services.worker_daemon.core.region_table import RegionKey, RegionTable, Slot

KEYS: list[RegionKey] = [(bytes([number]) * 16, 100 + number) for number in range(6)]
keys = st.sampled_from(KEYS)
OWNERS = ["kernel", "worker"]
owners = st.sampled_from(OWNERS)


class TableMachine(RuleBasedStateMachine):
    """The table beside a plain model: a slot in use is never handed back."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RegionTable()
        self.free = [Slot(0, index) for index in range(8)]
        self.slots: dict[RegionKey, Slot] = {}
        self.pins: dict[RegionKey, Counter[str]] = {}
        self.committed: set[RegionKey] = set()
        self.expendable: set[RegionKey] = set()
        self.superseded: set[RegionKey] = set()

    def _forget(self, key: RegionKey) -> None:
        self.free.append(self.slots.pop(key))
        self.pins.pop(key)
        self.committed.discard(key)
        self.expendable.discard(key)
        self.superseded.discard(key)

    @rule(chosen=st.lists(keys, max_size=4), owner=owners)
    def pin_all(self, chosen: list[RegionKey], owner: str) -> None:
        found = self.table.pin_all(chosen, owner)
        if any(key not in self.slots for key in chosen):
            assert found is None
            return
        assert found == [self.slots[key] for key in chosen]
        for key in chosen:
            self.pins[key][owner] += 1
            self.superseded.discard(key)

    @rule(key=keys, owner=owners, fetched=st.booleans())
    def put(self, key: RegionKey, owner: str, fetched: bool) -> None:
        if self.table.pin(key, owner) is None:
            assert key not in self.slots
            self.slots[key] = self.free.pop()
            self.table.add(key, self.slots[key], owner=owner, fetched=fetched)
            self.pins[key] = Counter()
            if fetched:
                self.committed.add(key)
                self.expendable.add(key)
        self.pins[key][owner] += 1
        self.superseded.discard(key)

    @rule(key=keys, holder=owners)
    def stage(self, key: RegionKey, holder: str) -> None:
        self.table.stage([key], holder)
        if key in self.slots:
            self.committed.add(key)
            self.expendable.discard(key)
            self.pins[key][holder] += 1

    @rule(key=keys)
    def let_go(self, key: RegionKey) -> None:
        self.table.let_go([key])
        if key in self.slots:
            self.expendable.add(key)

    @rule(owner=owners, chosen=st.none() | st.sets(keys))
    def unpin(self, owner: str, chosen: set[RegionKey] | None) -> None:
        freed = self.table.unpin(owner, chosen)
        expected = []
        for key in list(self.slots) if chosen is None else chosen & self.slots.keys():
            if not self.pins[key][owner]:
                continue
            self.pins[key][owner] -= self.pins[key][owner] if chosen is None else 1
            if not self.pins[key].total() and key not in self.committed and key not in self.expendable:
                expected.append(self.slots[key])
                self._forget(key)
        assert sorted(freed) == sorted(expected)

    @rule(chosen=st.sets(keys))
    def supersede(self, chosen: set[RegionKey]) -> None:
        self.table.supersede(chosen)
        self.superseded |= chosen & self.slots.keys()

    @rule(key=keys, owner=owners)
    def pin(self, key: RegionKey, owner: str) -> None:
        assert self.table.pin(key, owner) == self.slots.get(key)
        if key in self.slots:
            self.pins[key][owner] += 1
            self.superseded.discard(key)

    @rule(count=st.integers(0, 4), superseded_only=st.booleans())
    def evict(self, count: int, superseded_only: bool) -> None:
        could = {key for key in self.expendable if not self.pins[key].total()}
        first = could & self.superseded
        evicted = self.table.evict(count, superseded_only=superseded_only)
        assert len(evicted) == min(count, len(first if superseded_only else could))
        assert {key for key, _slot in evicted[: len(first)]} <= first
        for key, slot in evicted:
            assert self.slots[key] == slot and not self.pins[key].total() and key in self.expendable
            self._forget(key)

    @invariant()
    def slots_agree(self) -> None:
        assert len(self.table) == len(self.slots)
        assert len(set(self.free) | set(self.slots.values())) == 8
        for owner in OWNERS:
            assert set(self.table.pinned(owner)) == {key for key, pins in self.pins.items() if pins[owner]}


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestRegionTable = TableMachine.TestCase


def test_evict_takes_least_recently_used_first() -> None:
    table = RegionTable()
    for index, key in enumerate(KEYS[:3]):
        table.add(key, Slot(0, index), owner="fetch", fetched=True)
    table.unpin("fetch")
    table.pin(KEYS[0], "map")
    table.unpin("map")
    assert [key for key, _slot in table.evict(2)] == [KEYS[1], KEYS[2]]


def test_evict_keeps_what_only_this_host_has() -> None:
    table = RegionTable()
    table.add(KEYS[0], Slot(0, 0), owner="save")
    table.stage(KEYS[:1], "version 1")
    table.unpin("save")
    assert table.evict(5) == []
    table.let_go(KEYS[:1])
    assert table.evict(5) == [], "version 1 is not durable yet"
    table.unpin("version 1")
    assert len(table.evict(5)) == 1


def test_region_mapped_twice_stays_until_the_second_unmapping() -> None:
    table = RegionTable()
    table.add(KEYS[0], Slot(0, 0), owner="fetch", fetched=True)
    table.unpin("fetch")
    for _ in range(2):
        table.pin(KEYS[0], "kernel")
    table.unpin("kernel", KEYS[:1])
    assert table.evict(5) == []
    table.unpin("kernel", KEYS[:1])
    assert len(table.evict(5)) == 1


def test_stage_of_a_region_that_was_durable_before_keeps_it() -> None:
    table = RegionTable()
    table.add(KEYS[0], Slot(0, 0), owner="fetch", fetched=True)
    table.stage(KEYS[:1], "version 2")
    table.unpin("fetch")
    table.unpin("version 2")
    assert table.evict(5) == [], "nobody said that it is kept elsewhere"
