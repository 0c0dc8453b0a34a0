from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from looseleaf.services.worker_daemon.core.arena_room import (
    ROOM_WAIT_S,
    SAVES_WAITING_MAX,
    Action,
    Admit,
    ArenaRoom,
    Event,
    Evict,
    Levels,
    LevelsChanged,
    Marks,
    Refuse,
    SaveAsked,
    SaveEnded,
    SlotTaken,
)

MARKS = Marks(limit=12, high=9, low=6, cache=5)
SAVES = ["a", "b", "c"]
saves = st.sampled_from(SAVES)


@dataclass
class Asked:
    slots: int
    at_s: float


class RoomMachine(RuleBasedStateMachine):
    """The policy beside an arena in numbers: staged and mapped slots, idle ones, and what saves were promised."""

    def __init__(self) -> None:
        super().__init__()
        self.room = ArenaRoom(MARKS)
        self.now_s = 0.0
        self.needed = self.idle = 0
        self.promised: dict[str, int] = {}
        self.waiting: dict[str, Asked] = {}

    @property
    def levels(self) -> Levels:
        return Levels(self.needed + self.idle, self.idle)

    def tell(self, event: Event) -> None:
        for action in self.room.handle(event, self.levels, self.now_s):
            self.act(action)
        # Saves alone never lead above the high mark; restores may have led there before.
        promised = sum(self.promised.values())
        assert self.needed + self.idle + promised <= max(MARKS.high, self.needed + promised)
        assert self.idle <= MARKS.cache

    def act(self, action: Action) -> None:
        match action:
            case Admit(save):
                asked = self.waiting.pop(str(save))
                if asked.slots:
                    others = sum(self.promised.values())
                    assert self.needed + others + asked.slots <= MARKS.high, "the room is there"
                    self.promised[str(save)] = asked.slots
            case Refuse(save, needed, available):
                asked = self.waiting.pop(str(save))
                assert asked.slots == needed > available >= 0
                assert needed > MARKS.high or self.now_s >= asked.at_s + ROOM_WAIT_S, "it waited"
            case Evict(slots):
                assert 0 < slots <= self.idle, "only idle slots go"
                self.idle -= slots

    @rule(save=saves, slots=st.integers(0, 11))
    def ask(self, save: str, slots: int) -> None:
        self.promised.pop(save, None)
        self.waiting[save] = Asked(slots, self.now_s)
        self.tell(SaveAsked(save, slots))
        assert slots or save not in self.waiting, "who needs nothing does not wait"

    @rule(save=saves)
    def end(self, save: str) -> None:
        self.promised.pop(save, None)
        self.waiting.pop(save, None)
        self.tell(SaveEnded(save))

    @precondition(lambda self: any(self.promised.values()))
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        save = data.draw(st.sampled_from([save for save, left in self.promised.items() if left]))
        assert self.room.may_take(self.levels, save), "an admitted save finds its slots"
        self.needed += 1
        self.promised[save] -= 1
        self.tell(SlotTaken(save))

    @rule()
    def restore(self) -> None:
        if self.room.may_take(self.levels):
            assert self.needed + self.idle + sum(self.promised.values()) < MARKS.limit
            self.needed += 1
            self.tell(LevelsChanged())

    @rule(count=st.integers(1, 5))
    def become_idle(self, count: int) -> None:
        count = min(count, self.needed)
        self.needed -= count
        self.idle += count
        self.tell(LevelsChanged())

    @rule(count=st.integers(1, 5))
    def use_again(self, count: int) -> None:
        """Regions that were idle are mapped or pinned by a save: no slot is taken, but fewer can go."""
        room = MARKS.high - self.needed - sum(self.promised.values())
        count = min(count, self.idle, max(0, room))
        self.idle -= count
        self.needed += count
        self.tell(LevelsChanged())

    @rule(seconds=st.sampled_from([0.1, ROOM_WAIT_S / 2, ROOM_WAIT_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(LevelsChanged())
        assert all(self.now_s < asked.at_s + ROOM_WAIT_S for asked in self.waiting.values())

    @invariant()
    def agrees(self) -> None:
        assert self.room.reserved == sum(self.promised.values())
        assert self.needed + self.idle <= MARKS.limit
        assert {save for save in SAVES if self.room.deadline_s(save) is not None} == self.waiting.keys()
        pressed = self.needed + sum(self.promised.values()) > MARKS.low
        assert self.room.pressed(self.levels) == (pressed or bool(self.waiting))


RoomMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestArenaRoom = RoomMachine.TestCase


def test_asking_again_replaces_what_was_promised() -> None:
    room = ArenaRoom(MARKS)
    for slots in (9, 4):
        assert room.handle(SaveAsked("a", slots), Levels(0, 0), 0.0) == [Admit("a")]
    assert room.reserved == 4


def test_second_save_is_admitted_when_the_first_gives_up() -> None:
    room = ArenaRoom(MARKS)
    full = Levels(used=5, idle=0)
    assert room.handle(SaveAsked("a", 5), full, 0.0) == []
    assert room.handle(SaveAsked("b", 2), full, 1.0) == []
    assert room.handle(LevelsChanged(), full, ROOM_WAIT_S) == [Refuse("a", 5, 4), Admit("b")]


def test_waiting_saves_are_bounded() -> None:
    room = ArenaRoom(MARKS)
    full = Levels(used=9, idle=0)
    for number in range(SAVES_WAITING_MAX):
        assert room.handle(SaveAsked(number, 1), full, 0.0) == []
    assert room.handle(SaveAsked("more", 1), full, 0.0) == [Refuse("more", 1, 0)]


def test_marks_out_of_order_are_a_bug() -> None:
    for low, high, limit in ((0, 1, 1), (2, 1, 3), (1, 4, 3)):
        with pytest.raises(AssertionError):
            Marks(limit, high, low, 0)
