from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from looseleaf.ids import SessionId, Version
from looseleaf.services.worker_daemon.core import upload_order
from looseleaf.services.worker_daemon.core.region_table import RegionKey
from looseleaf.services.worker_daemon.core.upload_order import (
    FOREIGN_REGIONS_WAIT_S,
    GIVEN_UP_RETRY_S,
    Action,
    Asked,
    Committed,
    Event,
    Failed,
    Holder,
    Pin,
    Retiring,
    Stopping,
    Stored,
    Tried,
    Unpin,
    Upload,
    UploadOrder,
)

KEYS: list[RegionKey] = [(bytes([number]) * 16, 9) for number in range(8)]
SESSIONS = [SessionId("s-1"), SessionId("s-2")]
ONE, TWO = SESSIONS


class OrderMachine(RuleBasedStateMachine):
    """The order beside a host and a store: no region of a live version is lost, and none is pinned for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.order = UploadOrder()
        self.now_s = 0.0
        self.pins: Counter[tuple[int, RegionKey]] = Counter()
        self.holders: dict[int, Holder] = {}
        self.disk: set[RegionKey] = set()
        # What each version of a session names, by number; the newest is the head.
        self.versions: dict[SessionId, dict[int, set[RegionKey]]] = {session: {} for session in SESSIONS}
        self.durable: dict[SessionId, int] = dict.fromkeys(SESSIONS, 0)
        self.numbers = Counter[SessionId]()
        self.under_way: Upload | None = None

    def tell(self, event: Event) -> None:
        for action in self.order.handle(event, self.now_s):
            self.act(action)

    def act(self, action: Action) -> None:
        match action:
            case Pin(holder, keys):
                self.holders[id(holder)] = holder
                for key in keys:
                    assert not self.pins[id(holder), key], "pinned twice"
                    self.pins[id(holder), key] += 1
            case Unpin(holder, keys, _expendable):
                for key in keys:
                    assert self.pins[id(holder), key] == 1, "unpinned what it did not pin"
                    self.pins[id(holder), key] -= 1
            case Upload():
                assert self.under_way is None, "one at a time"
                self.under_way = action

    def pinned(self) -> set[RegionKey]:
        return {key for (_holder, key), count in self.pins.items() if count}

    @rule(session=st.sampled_from(SESSIONS), new=st.sets(st.sampled_from(KEYS), max_size=3), keep=st.booleans())
    def commit(self, session: SessionId, new: set[RegionKey], keep: bool) -> None:
        """A save pins what it puts anew; what it carries over is held by versions before it or on the disk."""
        versions = self.versions[session]
        carried = versions[max(versions)] if versions and keep else set()
        self.numbers[session] += 1
        versions[self.numbers[session]] = new | carried
        self.tell(Committed(session, Version(self.numbers[session]), frozenset(new)))

    @precondition(lambda self: self.under_way is None)
    @rule(pressed=st.booleans())
    def ask(self, pressed: bool) -> None:
        self.tell(Asked(pressed))

    @precondition(lambda self: self.under_way is not None)
    @rule(reach=st.sets(st.sampled_from(KEYS)), how=st.sampled_from(["upload", "fail", "unknown"]))
    def end(self, reach: set[RegionKey], how: str) -> None:
        assert self.under_way is not None
        session, version, rescue = self.under_way.session_id, self.under_way.version, self.under_way.rescue
        self.under_way = None
        named = self.versions[session].get(version)
        if (how == "unknown" or named is None) and rescue is not None:
            self.disk |= rescue
            self.tell(Stored(session, frozenset()))
        elif how == "unknown" or named is None:
            # The store dropped it: it is not what anybody falls back to.
            if version != max(self.versions[session], default=0):
                self.versions[session].pop(version, None)
            self.tell(Failed(session, "VERSION_UNKNOWN"))
        elif how == "fail":
            self.tell(Failed(session, "STORE_DOWN"))
        else:
            self.disk |= named & reach & self.pinned()
            missing = named - self.disk
            self.tell(Stored(session, frozenset(missing)))
            if missing:
                self.tell(Tried(session))
            else:
                self.durable[session] = max(self.durable[session], version)
                for older in [number for number in self.versions[session] if number < version]:
                    del self.versions[session][older]

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def delete(self) -> None:
        assert self.under_way is not None
        session = self.under_way.session_id
        self.under_way = None
        self.versions[session] = {}
        self.tell(Failed(session, "SESSION_UNKNOWN"))

    @rule(seconds=st.sampled_from([1.0, 70.0, FOREIGN_REGIONS_WAIT_S, GIVEN_UP_RETRY_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        pinned = self.pinned()
        for session in SESSIONS:
            head = max(self.versions[session], default=0)
            if head:
                assert self.versions[session][head] <= pinned | self.disk, "the newest version can still be read"

    @invariant()
    def holders_tell_what_they_pin(self) -> None:
        for number, holder in self.holders.items():
            assert {key for (owner, key), count in self.pins.items() if owner == number and count} == (
                holder.keys | holder.carried
            )

    def teardown(self) -> None:
        """With a store that takes everything, all is durable and nothing stays pinned."""
        for _ in range(300):
            self.now_s += GIVEN_UP_RETRY_S
            if self.under_way is None:
                self.tell(Asked(pressed=False))
            if self.under_way is None:
                break
            session, self.under_way = self.under_way.session_id, None
            self.tell(Stored(session, frozenset()))
        assert not self.pinned() and self.order.versions_waiting == 0 and self.order.due_s(pressed=False) is None


OrderMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestUploadOrder = OrderMachine.TestCase


def uploads(actions: list[Action]) -> list[tuple[SessionId, int]]:
    return [(action.session_id, action.version) for action in actions if isinstance(action, Upload)]


def staged(order: UploadOrder, session: SessionId, *versions: int) -> None:
    for version in versions:
        order.handle(Committed(session, Version(version), frozenset(KEYS[version - 1 : version])), 0.0)


def test_sessions_take_turns_and_versions_keep_their_order() -> None:
    order = UploadOrder()
    staged(order, ONE, 1, 2)
    staged(order, TWO, 3)
    seen = []
    while found := uploads(order.handle(Asked(pressed=False), 0.0)):
        seen += found
        order.handle(Stored(found[0][0], frozenset()), 0.0)
    assert seen == [(ONE, 1), (TWO, 3), (ONE, 2)]


def test_newest_version_goes_alone_where_room_is_short_and_frees_the_others() -> None:
    order = UploadOrder()
    staged(order, ONE, 1, 2, 3)
    assert uploads(order.handle(Asked(pressed=True), 0.0)) == [(ONE, 3)]
    (gone,) = order.handle(Stored(ONE, frozenset()), 0.0)
    assert isinstance(gone, Unpin) and gone.expendable and gone.keys == frozenset(KEYS[:3])


def test_nothing_goes_before_room_is_short_if_staged_is_enough() -> None:
    order = UploadOrder(eager=False)
    staged(order, ONE, 1)
    assert order.handle(Asked(pressed=False), 0.0) == [] and order.due_s(pressed=False) is None
    assert order.due_s(pressed=True) == 0.0 and uploads(order.handle(Asked(pressed=True), 0.0)) == [(ONE, 1)]


def test_version_under_way_is_not_given_up_for_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_order, "VERSIONS_PER_SESSION_MAX", 2)
    order = UploadOrder()
    staged(order, ONE, 1)
    order.handle(Asked(pressed=False), 0.0)
    staged(order, ONE, 2, 3, 4)
    assert order.versions_waiting == 2
    (gone,) = order.handle(Stored(ONE, frozenset()), 0.0)
    assert isinstance(gone, Unpin) and gone.keys == frozenset(KEYS[:1]), "what 2 and 3 had, 4 may name"
    assert uploads(order.handle(Asked(pressed=False), 0.0)) == [(ONE, 4)]


def test_version_that_was_given_up_is_asked_about_until_its_session_is_gone() -> None:
    order = UploadOrder()
    staged(order, ONE, 1)
    order.handle(Asked(pressed=False), 0.0)
    order.handle(Failed(ONE, "VERSION_UNKNOWN"), 0.0)
    assert order.waiting == {ONE: 1} and order.versions_waiting == 0, "a stop has to name it"
    assert order.handle(Asked(pressed=False), GIVEN_UP_RETRY_S - 1) == []
    assert uploads(order.handle(Asked(pressed=False), GIVEN_UP_RETRY_S)) == [(ONE, 1)]
    (gone,) = order.handle(Failed(ONE, "SESSION_UNKNOWN"), GIVEN_UP_RETRY_S)
    assert isinstance(gone, Unpin) and gone.expendable
    assert order.due_s(pressed=False) is None


def test_stop_tries_at_once_what_was_given_up_or_waits_for_a_later_try() -> None:
    order = UploadOrder(eager=False)
    staged(order, ONE, 1)
    staged(order, TWO, 1)
    for session, reason in ((ONE, "VERSION_UNKNOWN"), (TWO, "STORE_FULL")):
        assert uploads(order.handle(Asked(pressed=True), 0.0)) == [(session, 1)]
        order.handle(Failed(session, reason), 0.0)
    assert order.handle(Asked(pressed=True), 0.5) == []
    order.handle(Stopping(), 0.5)
    assert order.versions_waiting == 2
    for session in (ONE, TWO):
        assert uploads(order.handle(Asked(pressed=False), 0.5)) == [(session, 1)]
        order.handle(Stored(session, frozenset()), 0.5)
    assert order.waiting == {}


def test_host_that_is_to_end_uploads_at_once_and_from_then_on() -> None:
    order = UploadOrder(eager=False)
    staged(order, ONE, 1)
    assert (uploads(order.handle(Asked(pressed=False), 0.0)), order.waiting) == ([], {ONE: Version(1)})
    order.handle(Retiring(), 0.0)
    assert uploads(order.handle(Asked(pressed=False), 0.0)) == [(ONE, 1)]
    order.handle(Stored(ONE, frozenset()), 0.0)
    assert order.waiting == {}
    staged(order, ONE, 2)
    assert uploads(order.handle(Asked(pressed=False), 0.0)) == [(ONE, 2)]


def test_stop_gives_up_at_once_again_what_needs_regions_that_are_lost() -> None:
    order = UploadOrder()
    staged(order, ONE, 1)
    for now_s in (0.0, FOREIGN_REGIONS_WAIT_S):
        order.handle(Asked(pressed=False), now_s)
        order.handle(Tried(ONE), now_s)
    order.handle(Stopping(), FOREIGN_REGIONS_WAIT_S)
    assert uploads(order.handle(Asked(pressed=False), FOREIGN_REGIONS_WAIT_S)) == [(ONE, 1)]
    order.handle(Tried(ONE), FOREIGN_REGIONS_WAIT_S)
    assert (order.versions_waiting, order.waiting) == (0, {ONE: 1})


def test_what_a_given_up_version_holds_goes_to_the_disk_when_it_is_asked_about_again() -> None:
    order = UploadOrder()
    staged(order, ONE, 1, 2)
    assert order.handle(Asked(pressed=False), 0.0) == [Upload(ONE, Version(1))]
    order.handle(Failed(ONE, "VERSION_UNKNOWN"), 0.0)
    assert order.handle(Asked(pressed=False), 0.0) == [Upload(ONE, Version(2))]
    order.handle(Failed(ONE, "VERSION_UNKNOWN"), 0.0)
    rescue = Upload(ONE, Version(2), frozenset(KEYS[:2]))
    assert order.handle(Asked(pressed=False), GIVEN_UP_RETRY_S) == [rescue]
    order.handle(Failed(ONE, "STORE_FULL"), GIVEN_UP_RETRY_S)
    assert order.handle(Asked(pressed=False), GIVEN_UP_RETRY_S + 1) == [rescue]
    (gone,) = order.handle(Stored(ONE, frozenset()), GIVEN_UP_RETRY_S + 1)
    assert isinstance(gone, Unpin) and gone.expendable and gone.keys == rescue.rescue
    assert order.waiting == {} and order.due_s(pressed=False) is None


def test_failures_are_tried_again_ever_later() -> None:
    order, now_s, waits = UploadOrder(), 0.0, []
    staged(order, ONE, 1)
    for _ in range(9):
        assert uploads(order.handle(Asked(pressed=False), now_s))
        order.handle(Failed(ONE, "STORE_DOWN"), now_s)
        due_s = order.due_s(pressed=False)
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = due_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
