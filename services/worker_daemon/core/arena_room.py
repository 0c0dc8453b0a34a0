"""Which saves may put their regions into the arena, and when clean regions have to go (design §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

# For so long a save waits until others' versions are durable and their slots may be reused.
ROOM_WAIT_S = 30.0
SAVES_WAITING_MAX = 64


@dataclass(frozen=True)
class Marks:
    """Limits in slots: `low <= high <= limit`.

    Saves are admitted up to the high mark only: what lies between it and the limit is for restores. Above the high mark
    idle regions go, least recently used first, until the low mark. `cache`: idle regions that are kept at most.
    """

    limit: int
    high: int
    low: int
    cache: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= self.limit or self.cache < 0:
            raise AssertionError(f"marks out of order: {self}")


@dataclass(frozen=True)
class Levels:
    """How full the arena is, in slots. `idle`: those of the used ones that may be reused at any time."""

    used: int
    idle: int


@dataclass(frozen=True)
class SaveAsked:
    """A save is about to put `slots` regions; what it was admitted for before counts no more."""

    save: Hashable
    slots: int


@dataclass(frozen=True)
class SlotTaken:
    """A region of an admitted save got its slot."""

    save: Hashable


@dataclass(frozen=True)
class SaveEnded:
    """The save was committed, or will never be; also one that still waits."""

    save: Hashable


@dataclass(frozen=True)
class LevelsChanged:
    """Slots were taken or given back, or time has passed."""


Event = SaveAsked | SlotTaken | SaveEnded | LevelsChanged


@dataclass(frozen=True)
class Admit:
    """The save has room for what it asked for."""

    save: Hashable


@dataclass(frozen=True)
class Refuse:
    """The save asked for more slots than it could have, `available`, also after a wait."""

    save: Hashable
    needed: int
    available: int


@dataclass(frozen=True)
class Evict:
    """So many idle regions have to go now."""

    slots: int


Action = Admit | Refuse | Evict


@dataclass
class _Waiting:
    slots: int
    until_s: float


class ArenaRoom:
    """Admission of saves in the order in which they asked; I/O-free.

    Whoever carries out every Evict at once can rely on this: the slots that saves were admitted for are there, and
    admitted saves never fill more than the high mark. A save that asks for nothing never waits. One that cannot fit
    even into an empty arena is refused at once, another after `ROOM_WAIT_S`.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self._reserved: dict[Hashable, int] = {}
        self._waiting: OrderedDict[Hashable, _Waiting] = OrderedDict()

    @property
    def reserved(self) -> int:
        """Slots that admitted saves have not taken yet."""
        return sum(self._reserved.values())

    def deadline_s(self, save: Hashable) -> float | None:
        """When a save has waited long enough; None if it does not wait."""
        waiting = self._waiting.get(save)
        return None if waiting is None else waiting.until_s

    def may_take(self, levels: Levels, save: Hashable = None) -> bool:
        """Whether a slot is free for a region of `save`, or of a restore or an unannounced save (None)."""
        if self._reserved.get(save):
            return levels.used < self.marks.limit
        return levels.used + self.reserved < self.marks.limit

    def pressed(self, levels: Levels) -> bool:
        """Whether room is short that only making versions durable can give."""
        return bool(self._waiting) or levels.used - levels.idle + self.reserved > self.marks.low

    def handle(self, event: Event, levels: Levels, now_s: float) -> list[Action]:
        """What is to be done; `levels` are those after the event."""
        actions: list[Action] = []
        match event:
            case SaveAsked(save, slots):
                self._forget(save)
                actions += self._ask(save, slots, levels, now_s)
            case SlotTaken(save):
                if self._reserved.get(save):
                    self._reserved[save] -= 1
            case SaveEnded(save):
                self._forget(save)
            case LevelsChanged():
                pass
        actions += self._admit(levels, now_s)
        evicted = self._evictable(levels)
        return [*actions, Evict(evicted)] if evicted else actions

    def _forget(self, save: Hashable) -> None:
        self._reserved.pop(save, None)
        self._waiting.pop(save, None)

    def _ask(self, save: Hashable, slots: int, levels: Levels, now_s: float) -> list[Action]:
        if slots == 0:
            return [Admit(save)]
        if slots > self.marks.high or len(self._waiting) >= SAVES_WAITING_MAX:
            return [Refuse(save, slots, self._available(levels))]
        self._waiting[save] = _Waiting(slots, now_s + ROOM_WAIT_S)
        return []

    def _admit(self, levels: Levels, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for save, waiting in list(self._waiting.items()):
            if waiting.slots <= self._available(levels):
                del self._waiting[save]
                self._reserved[save] = waiting.slots
                actions.append(Admit(save))
            elif now_s >= waiting.until_s:
                del self._waiting[save]
                actions.append(Refuse(save, waiting.slots, self._available(levels)))
            else:
                # In turn: one that asks for little must not keep back one that asks for much, again and again.
                break
        return actions

    def _available(self, levels: Levels) -> int:
        """Slots for saves, if every idle region goes."""
        return max(0, self.marks.high - (levels.used - levels.idle) - self.reserved)

    def _evictable(self, levels: Levels) -> int:
        claimed = levels.used + self.reserved
        over = claimed - self.marks.low if claimed > self.marks.high else levels.idle - self.marks.cache
        return max(0, min(over, levels.idle))
