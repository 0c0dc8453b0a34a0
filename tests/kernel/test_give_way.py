"""Work on the main thread that is broken off by an arrival."""

from __future__ import annotations

import signal
import threading

import pytest

from looseleaf.kernel.give_way import SIGNAL, GaveWay, GiveWay


def from_another_thread(give_way: GiveWay) -> None:
    thread = threading.Thread(target=give_way.arrived)
    thread.start()
    thread.join()


def test_arrival_breaks_off_breakable_work_once() -> None:
    give_way, done = GiveWay(), []

    def work() -> None:
        with give_way.breakable("cell"):
            done.append("begun")
            from_another_thread(give_way)
            threading.Event().wait(20)
            done.append("ended")

    with pytest.raises(GaveWay):
        work()
    assert done == ["begun"]
    from_another_thread(give_way)
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL


def test_arrival_does_nothing_after_hold_and_outside() -> None:
    give_way = GiveWay()
    from_another_thread(give_way)
    with give_way.breakable("cell"):
        give_way.hold()
        from_another_thread(give_way)
    from_another_thread(give_way)


def test_arrival_passes_through_a_persons_except_exception() -> None:
    give_way = GiveWay()

    def careless() -> None:
        with give_way.breakable("cell"):
            try:
                from_another_thread(give_way)
                threading.Event().wait(20)
            except Exception:
                pytest.fail("swallowed")

    with pytest.raises(GaveWay):
        careless()


def test_interrupt_breaks_off_only_what_a_cell_waits_for() -> None:
    give_way = GiveWay()
    with give_way.breakable("cell"):
        give_way.interrupted()
        threading.Event().wait(0)
    done = []

    def work() -> None:
        with give_way.breakable("interrupt"):
            give_way.arrived()
            threading.Event().wait(0)
            done.append("no cell breaks it off")
            give_way.interrupted()
            threading.Event().wait(20)

    with pytest.raises(GaveWay):
        work()
    assert done == ["no cell breaks it off"]
