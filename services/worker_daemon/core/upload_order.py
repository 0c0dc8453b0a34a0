"""Which staged version goes to the store's disk next, and when a version's regions need not stay (design §7)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from looseleaf.ids import SessionId, Version
from looseleaf.services.worker_daemon.core.region_table import RegionKey

# Versions of one session that wait; beyond it the oldest is given up.
VERSIONS_PER_SESSION_MAX = 64
RETRY_DELAY_S_MIN = 1.0
RETRY_DELAY_S_MAX = 60.0
# For so long a version waits for regions that another host has to upload.
FOREIGN_REGIONS_WAIT_S = 120.0
# After so long the store is asked again about a version that was given up and that no newer one replaced.
GIVEN_UP_RETRY_S = 600.0


@dataclass(eq=False)
class Holder:
    """A staged version; pins regions that nobody but this host may have.

    `keys`: of its own regions those that may not be on the disk. `carried`: regions of older versions that were given
    up; it may name some of them. `given_up`: it was, at least once.
    """

    version: Version
    keys: set[RegionKey]
    carried: set[RegionKey] = field(default_factory=set)
    given_up: bool = False


@dataclass(frozen=True)
class Committed:
    """A version was staged here; `keys`: its regions that the version before did not have."""

    session_id: SessionId
    version: Version
    keys: frozenset[RegionKey]


@dataclass(frozen=True)
class Asked:
    """The last upload is over. `pressed`: room in the arena is short."""

    pressed: bool


@dataclass(frozen=True)
class Retiring:
    """The host is to end once nothing waits here: from now on versions go as soon as they are staged."""


@dataclass(frozen=True)
class Stopping:
    """The host stops, and its arena goes with it: whatever waits for a later try is tried now, given up or not."""


@dataclass(frozen=True)
class Stored:
    """Of the session's version under way the store's disk lacks `missing`; it is durable if that is empty."""

    session_id: SessionId
    missing: frozenset[RegionKey]


@dataclass(frozen=True)
class Tried:
    """The upload of the session's version under way went as far as it could; the disk still lacks regions."""

    session_id: SessionId


@dataclass(frozen=True)
class Failed:
    """The upload of the session's version under way failed."""

    session_id: SessionId
    reason: str


Event = Committed | Asked | Retiring | Stopping | Stored | Tried | Failed


@dataclass(frozen=True)
class Pin:
    """`holder` keeps these regions."""

    holder: Holder
    keys: frozenset[RegionKey]


@dataclass(frozen=True)
class Unpin:
    """`holder` keeps these no longer; `expendable`: they are on the disk, or no version needs them."""

    holder: Holder
    keys: frozenset[RegionKey]
    expendable: bool


@dataclass(frozen=True)
class Upload:
    """To be made durable now; one at a time.

    `rescue`: of a version that was given up before, all that it holds. If the store knows the version no more, these
    go to its disk for newer versions that other hosts may have made of it; then it is `Stored`.
    """

    session_id: SessionId
    version: Version
    rescue: frozenset[RegionKey] | None = None


Action = Pin | Unpin | Upload


@dataclass
class _Session:
    # Neither durable nor given up, oldest first.
    waiting: deque[Holder] = field(default_factory=deque)
    # The last version, if none waits: it could not be made durable, and a newer one may name its regions.
    given_up: Holder | None = None
    under_way: Holder | None = None
    retry_at_s: float = 0.0
    delay_s: float = field(default_factory=lambda: RETRY_DELAY_S_MIN)
    foreign_since_s: float | None = None

    @property
    def newest(self) -> Holder:
        newest = self.waiting[-1] if self.waiting else self.given_up
        assert newest is not None, "a session without versions is forgotten"
        return newest

    def ask_again(self) -> None:
        """A version that was given up waits once more."""
        if self.given_up is not None:
            self.waiting.append(self.given_up)
            self.given_up = None

    def begin_anew(self, retry_at_s: float) -> None:
        self.retry_at_s, self.delay_s, self.foreign_since_s = retry_at_s, RETRY_DELAY_S_MIN, None

    def retry_later(self, now_s: float) -> None:
        self.retry_at_s = now_s + self.delay_s
        self.delay_s = min(self.delay_s * 2, RETRY_DELAY_S_MAX)


class UploadOrder:
    """Uploads each session's versions in the order of their commits, the sessions in turn; I/O-free.

    A region stays pinned until it is on the disk, or a newer version of its session is durable, or the session is
    gone. Where room is short, a session's newest version goes alone: what only older ones need is freed by it. Not
    `eager` (durability `staged`): nothing goes before room is short.
    """

    def __init__(self, *, eager: bool = True) -> None:
        self.eager = eager
        self._stopping = False
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()

    @property
    def waiting(self) -> dict[SessionId, Version]:
        """Sessions with versions that are staged and not durable, given up or not, with the newest of each."""
        return {key: session.newest.version for key, session in self._sessions.items()}

    @property
    def versions_waiting(self) -> int:
        """How many versions are neither durable nor given up."""
        return sum(len(session.waiting) for session in self._sessions.values())

    def due_s(self, pressed: bool) -> float | None:
        """When to ask again at the latest; None: not before something is committed or room gets short."""
        if not (self.eager or pressed):
            return None
        return min((session.retry_at_s for session in self._sessions.values()), default=None)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done."""
        match event:
            case Committed(session_id, version, keys):
                return self._committed(self._sessions.setdefault(session_id, _Session()), version, keys)
            case Asked(pressed):
                return self._next(now_s, pressed) if self.eager or pressed else []
            case Retiring():
                self._hurry()
                return []
            case Stopping():
                self._stopping = True
                self._hurry()
                return []
            case Stored(session_id, missing):
                return self._stored(session_id, missing)
            case Tried(session_id):
                return self._incomplete(self._ended(session_id), now_s)
            case Failed(session_id, reason):
                return self._failed(session_id, self._ended(session_id), reason, now_s)

    def _hurry(self) -> None:
        """Everything is due, also what was given up or failed before."""
        self.eager = True
        for session in self._sessions.values():
            session.ask_again()
            session.begin_anew(0.0)

    def _committed(self, session: _Session, version: Version, keys: frozenset[RegionKey]) -> list[Action]:
        staged = Holder(version, set(keys))
        session.waiting.append(staged)
        actions: list[Action] = [Pin(staged, keys)] if keys else []
        if session.given_up is not None:
            actions += _carry(session.given_up, staged)
            session.given_up = None
            session.begin_anew(0.0)
        if len(session.waiting) > VERSIONS_PER_SESSION_MAX:
            actions += self._skip(session)
        return actions

    def _skip(self, session: _Session) -> list[Action]:
        """The oldest version that is not under way waits no longer; the next one holds its regions."""
        oldest = 1 if session.waiting[0] is session.under_way else 0
        skipped = session.waiting[oldest]
        del session.waiting[oldest]
        return _carry(skipped, session.waiting[oldest])

    def _next(self, now_s: float, pressed: bool) -> list[Action]:
        session_id = next((key for key, session in self._sessions.items() if session.retry_at_s <= now_s), None)
        if session_id is None:
            return []
        session = self._sessions[session_id]
        self._sessions.move_to_end(session_id)
        session.ask_again()
        actions: list[Action] = []
        while pressed and len(session.waiting) > 1:
            actions += self._skip(session)
        holder = session.under_way = session.waiting[0]
        rescue = frozenset(holder.keys | holder.carried) if holder.given_up else None
        return [*actions, Upload(session_id, holder.version, rescue)]

    def _ended(self, session_id: SessionId) -> _Session:
        session = self._sessions[session_id]
        assert session.under_way is session.waiting[0]
        session.under_way = None
        return session

    def _stored(self, session_id: SessionId, missing: frozenset[RegionKey]) -> list[Action]:
        if missing:
            holder = self._sessions[session_id].waiting[0]
            return _let_go(holder, holder.keys - missing)
        # Whatever an older version needs beyond this one is no use to its session any more.
        session = self._ended(session_id)
        holder = session.waiting.popleft()
        session.begin_anew(0.0)
        if not session.waiting:
            del self._sessions[session_id]
        return _let_go(holder, holder.keys | holder.carried)

    def _failed(self, session_id: SessionId, session: _Session, reason: str, now_s: float) -> list[Action]:
        if reason == "SESSION_UNKNOWN":
            del self._sessions[session_id]
            return [action for holder in session.waiting for action in _let_go(holder, holder.keys | holder.carried)]
        if reason == "VERSION_UNKNOWN":
            # Retention, a fall-back, or a commit that was refused after all: a newer version may name its regions.
            return self._give_up(session, now_s)
        session.retry_later(now_s)
        return []

    def _incomplete(self, session: _Session, now_s: float) -> list[Action]:
        """Some regions are not here: another host uploads them, or they are lost."""
        if session.foreign_since_s is None:
            session.foreign_since_s = now_s
        waited_s = now_s - session.foreign_since_s
        if waited_s >= FOREIGN_REGIONS_WAIT_S or (self._stopping and session.waiting[0].given_up):
            return self._give_up(session, now_s)
        session.retry_later(now_s)
        return []

    def _give_up(self, session: _Session, now_s: float) -> list[Action]:
        """The oldest version waits no longer; its regions stay until a newer one is durable."""
        if len(session.waiting) > 1:
            session.begin_anew(0.0)
            return self._skip(session)
        session.given_up = session.waiting.popleft()
        session.given_up.given_up = True
        session.begin_anew(now_s + GIVEN_UP_RETRY_S)
        return []


def _carry(old: Holder, new: Holder) -> list[Action]:
    """`new` holds what `old` held."""
    held = frozenset(old.keys | old.carried)
    fresh = held - new.keys - new.carried
    new.carried |= fresh
    old.keys, old.carried = set(), set()
    pins: list[Action] = [Pin(new, fresh)] if fresh else []
    return [*pins, Unpin(old, held, False)] if held else pins


def _let_go(holder: Holder, keys: Iterable[RegionKey]) -> list[Action]:
    gone = frozenset(keys)
    holder.keys -= gone
    holder.carried -= gone
    return [Unpin(holder, gone, True)] if gone else []
