"""What a person reads of threads and processes that GPU cells left running."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from looseleaf.errors import Conflict, Unavailable
from looseleaf.kernel.forwarder import Publishers
from looseleaf.kernel.left_notes import HELD_MAX, LeftNotes, describe

THREAD = [{"kind": "thread", "name": "T"}]


class Reader:
    """The notebook's page: texts by request."""

    def __init__(self) -> None:
        self.newest = "newest"
        self.shown: list[tuple[str, str]] = []
        publishers = Publishers(self._show, lambda *_: None, lambda: self.newest)
        publishers.request("cell").known_as("x-1")
        self.notes = LeftNotes(publishers)
        self.asked: list[tuple[str, Any]] = []

    def _show(self, parent: Any, _kind: str, content: dict[str, Any], *_rest: Any) -> None:
        self.shown.append((parent, content["text"]))

    def send(self, kind: str, body: Any) -> Future[Any]:
        self.asked.append((kind, body))
        done: Future[Any] = Future()
        done.set_exception(Conflict("EXECUTION_ENDED", "it has ended"))
        return done

    def ended(self, execution_id: str, pid: int, left: bool = False, rest: Any = ()) -> None:
        self.notes.cell_ended(execution_id, {"pid": pid, "left_running": left}, lambda: rest)

    def news(self, state: str, execution_id: str = "x-1") -> None:
        self.notes.take({
            "kind": "left", "execution_id": execution_id, "state": state, "items": THREAD, "limit_s": 60.0,
        })  # fmt: skip


@pytest.fixture
def reader() -> Reader:
    made = Reader()
    made.ended("x-1", 7, left=True)
    return made


def test_late_text_belongs_to_its_task_or_to_the_newest_request(reader: Reader) -> None:
    for origin in ({"origin": "x-1"}, {}, {"origin": "forgotten"}):
        reader.notes.take({"kind": "output", "message": {"type": "stream", "name": "stdout", "text": "t", **origin}})
    assert [parent for parent, _text in reader.shown] == ["cell", "newest", "newest"]


def test_hold_is_told_once_under_its_cell(reader: Reader) -> None:
    reader.news("held")
    reader.news("held")
    ((parent, text),) = reader.shown
    assert parent == "cell" and "background thread 'T'" in text and "up to 60 s" in text


@pytest.mark.parametrize(("state", "says"), [("limit", "was ended after 60 s"), ("lost", "ended with its worker")])
def test_forced_end_says_that_changes_are_not_kept(reader: Reader, state: str, says: str) -> None:
    reader.news(state)
    assert says in reader.shown[0][1] and "not kept" in reader.shown[0][1]


def test_end_by_itself_is_no_news(reader: Reader) -> None:
    reader.news("ended")
    assert reader.shown == []


def test_next_cell_gives_the_hold_up_even_if_it_has_just_ended(reader: Reader) -> None:
    reader.notes.release(reader.send)
    assert reader.asked == [("release_left", {"execution_id": "x-1"})]
    reader.news("released")
    reader.notes.release(reader.send)
    assert len(reader.asked) == 1


@pytest.mark.parametrize(("pid", "told"), [(7, []), (8, ["cell"])])
def test_what_was_given_up_is_named_if_the_next_cell_ran_elsewhere(reader: Reader, pid: int, told: list[str]) -> None:
    reader.news("released")
    reader.ended("x-2", pid)
    assert [parent for parent, _text in reader.shown] == told


def test_cluster_that_went_does_not_keep_the_next_cell_from_running(reader: Reader) -> None:
    def gone(_kind: str, _body: Any) -> Any:
        raise Unavailable("NO_CLUSTER", "nobody is there")

    reader.notes.release(gone)


@pytest.mark.parametrize("event", [
    {"kind": "output", "message": 3}, {"kind": "output", "message": {"type": "unknown"}},
    {"kind": "left", "execution_id": "x-1"}, {"kind": "left", "state": "held", "execution_id": 4}, {},
])  # fmt: skip
def test_malformed_event_is_dropped(reader: Reader, event: Any) -> None:
    reader.notes.take(event)
    assert reader.shown == []


def test_event_that_comes_while_a_cell_ends_does_not_overtake_those_before_it(reader: Reader) -> None:
    def late(text: str) -> dict[str, Any]:
        return {"kind": "output", "message": {"type": "stream", "name": "stdout", "text": text}}

    other = threading.Thread(target=reader.notes.take, args=[late("second")])

    def rest() -> list[dict[str, Any]]:
        other.start()
        # Long enough for it to be shown first, were it not for the order.
        other.join(0.2)
        return [late("first")]

    reader.notes.cell_ended("x-2", {"pid": 7}, rest)
    other.join(10)
    assert [text for _parent, text in reader.shown] == ["first", "second"]


def test_holds_whose_end_is_never_told_are_limited(reader: Reader) -> None:
    for number in range(HELD_MAX + 10):
        reader.ended(f"lost-{number}", 7, left=True)
    reader.notes.release(reader.send)
    assert len(reader.asked) == HELD_MAX and reader.asked[-1][1] == {"execution_id": f"lost-{HELD_MAX + 9}"}


def test_describe_names_three_and_counts_the_rest() -> None:
    items = [{"kind": "task", "name": f"n{number}"} for number in range(5)]
    assert describe(items) == "asyncio task 'n0', asyncio task 'n1', asyncio task 'n2' and 2 more"
