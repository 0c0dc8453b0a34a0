"""Whoever some allowed set of hosts could serve is served, within bounded time; whoever none could is told at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.host_table import HostTable
from looseleaf.services.scheduler.core.shapes import HostShape
from tests.services.scheduler.core.provided_world import BOOT_S, BOOT_TIMEOUT_S, Cell, ProvidedWorld

SMALL, LARGE, WIDE = HostShape(2, 24), HostShape(2, 80), HostShape(4, 24)
# A cell waits for at most all others, and for a host to go and another one to come before each of them.
CHANGE_S = BOOT_S + 30.0

shapes = st.sampled_from([SMALL, LARGE, WIDE, HostShape(1, 40)])
cells = st.builds(
    Cell, st.integers(0, 40).map(float), st.sampled_from([1, 1, 1, 2, 4]), st.sampled_from([1, 1, 24, 30, 80, 200]),
    st.integers(1, 12).map(float))


@given(
    st.lists(shapes, min_size=1, max_size=3, unique=True), st.lists(shapes, max_size=2),
    st.lists(cells, min_size=1, max_size=8), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=25)
def test_every_cell_that_an_allowed_set_of_hosts_could_hold_starts_in_bounded_time_and_no_other(
    kinds: list[HostShape], lasting: list[HostShape], cells: list[Cell], hosts_more: int, names_memory: bool,
) -> None:
    names_memory = names_memory or len({kind.gpu_count for kind in kinds}) < len(kinds)
    world = ProvidedWorld(
        tuple(kinds), tuple(lasting), cells, max(1, len(lasting) + hosts_more - 1), names_memory)
    bound_s = sum(cell.run_s + CHANGE_S for cell in cells) + max(cell.at_s for cell in cells)
    world.run_until(bound_s)
    for cell in cells:
        assert not cell.waits, f"{cell} waits for ever"
        assert bool(cell.refused) is not world.could_serve(cell), cell
        assert cell.refused in ("", "NEVER_FITS")


@given(
    st.lists(shapes, min_size=2, max_size=3, unique=True), st.lists(shapes, max_size=2),
    st.lists(cells, min_size=1, max_size=8), st.integers(1, 3), st.data())
@settings(deadline=None, max_examples=25)
def test_kind_of_host_that_cannot_be_started_keeps_no_cell_from_the_others(
    kinds: list[HostShape], lasting: list[HostShape], cells: list[Cell], hosts_more: int, data: st.DataObject,
) -> None:
    refused = data.draw(st.sets(st.sampled_from(kinds), min_size=1))
    lost = data.draw(st.sets(st.sampled_from(kinds))) - refused
    world = ProvidedWorld(
        tuple(kinds), tuple(lasting), cells, max(1, len(lasting) + hosts_more - 1), refused=frozenset(refused),
        lost=frozenset(lost))
    # Each kind is tried ever more seldom, and a try costs a host its place for at most its time to come.
    tries_s = 10 * len(refused | lost) * (CHANGE_S + BOOT_TIMEOUT_S)
    bound_s = sum(cell.run_s + CHANGE_S for cell in cells) + max(cell.at_s for cell in cells) + tries_s
    world.run_until(bound_s)
    for cell in cells:
        assert not (world.could_serve(cell) and cell.waits), f"{cell} waits for ever"
        assert not (cell.refused and world.is_offered(cell)), f"{cell} is refused though a host may come"


def test_hosts_make_way_ever_more_seldom_for_a_kind_that_does_not_come(new_rig: Any) -> None:
    rig = new_rig(
        hosts_min=2, hosts_max=2, gpus_per_host=2, headroom_hosts=0, stop_heartbeats=0, heartbeat_suspect_s=9e9,
        heartbeat_dead_s=9e9, start_timeout_s=9e9, power_off_after_s=9e9)
    owned = frozenset({HostId("p0")})
    rig.heartbeat("h0", gpus=2, gpu_memory_bytes=24)
    rig.send(ev.HostsProvided(owned, owned, (SMALL, LARGE)))
    rig.heartbeat("p0", gpus=2, gpu_memory_bytes=24)
    rig.run("big", "big", device_bytes=50)
    rig.run("small", "small")
    drains, number, reasons = [], 0, set()
    while rig.now_s < 7000.0:
        rig.pass_time(1.0)
        drains += [rig.now_s] * len(rig.all(act.DrainHost))
        todo = list(rig.last)
        for action in todo:
            match action:
                case act.StopHost(host_id):
                    todo += rig.send(ev.HostEnded(host_id))
                case act.PowerOn(count, shape) if shape == LARGE:
                    todo += rig.send(ev.PowerOnFailed(count, "NO_MORE_HOSTS", shape))
                case act.PowerOn(_count, shape):
                    number += 1
                    todo += rig.send(ev.HostsStarting((HostId(f"p{number}"),), shape))
                    todo += rig.heartbeat(f"p{number}", gpus=2, gpu_memory_bytes=24)
                case act.NotifyQueue():
                    reasons.add(action.reason)
    pauses_s = [later - sooner for sooner, later in itertools.pairwise(drains)]
    assert 5 <= len(drains) <= 12
    assert all(later > sooner for sooner, later in itertools.pairwise(pauses_s))
    assert any("could not be started; it is tried again" in reason for reason in reasons)
    # Somebody has a host of the kind after all.
    rig.heartbeat("late", gpus=2, gpu_memory_bytes=80)
    assert rig.one(act.GrantLease).lease.execution_id == "big"


def test_cell_that_is_refused_once_a_host_came_is_told_when_the_kind_of_host_is_known() -> None:
    world = ProvidedWorld((SMALL,), (), [Cell(1, 1, 10, 5), Cell(1, 1, 30, 5)], 2, names_memory=False)
    world.run_until(60)
    assert (world.cells[0].refused, world.cells[1].refused) == ("", "NEVER_FITS")


@pytest.fixture
def two_kinds(new_rig: Any) -> Any:
    """One host of 24 that stays; the provider can start hosts of 24 and of 80, up to four in all."""
    rig = new_rig(
        hosts_min=1, hosts_max=4, gpus_per_host=2, headroom_hosts=0, power_off_after_s=10.0, stop_heartbeats=0,
        heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3, demand_peak_s=20.0)
    rig.heartbeat("h0", gpus=2, gpu_memory_bytes=24)
    rig.send(ev.HostsProvided(frozenset(), frozenset(), (SMALL, LARGE)))
    return rig


def test_cell_that_no_host_holds_starts_one_of_its_kind_at_once_however_many_gpus_are_free(two_kinds: Any) -> None:
    two_kinds.run("x1", device_bytes=50)
    two_kinds.pass_time(1.0)
    assert two_kinds.one(act.PowerOn) == act.PowerOn(1, LARGE)
    assert [told.reason for told in two_kinds.all(act.NotifyQueue)] == [
        "No GPU with enough memory for this cell's variables is free. Another host is being started."]
    two_kinds.pass_time(1.0)
    assert two_kinds.all(act.PowerOn) == []
    two_kinds.heartbeat("p1", gpus=2, gpu_memory_bytes=80)
    assert two_kinds.one(act.GrantLease).lease.host_id == "p1"


def test_cell_that_no_kind_of_host_holds_is_refused_with_what_there_is(two_kinds: Any) -> None:
    two_kinds.run("x1", device_bytes=100)
    refusal = two_kinds.one(act.Refuse)
    assert (refusal.reason, dict(refusal.fields)["largest_bytes"]) == ("NEVER_FITS", 80)
    two_kinds.run("x2", gpus=3)
    assert dict(two_kinds.one(act.Refuse).fields)["largest_host_gpus"] == 2


def test_cell_of_several_gpus_over_fragmented_hosts_starts_a_host_when_its_patience_ends(two_kinds: Any) -> None:
    two_kinds.heartbeat("h1", gpus=2, gpu_memory_bytes=24)
    leases = [two_kinds.lease(f"x{number}", f"s{number}") for number in range(3)]
    two_kinds.finish(leases[0])
    assert {lease.host_id for lease in leases[1:]} == {"h0", "h1"}
    two_kinds.run("x9", "s9", gpus=2)
    two_kinds.pass_time(9.0)
    assert two_kinds.all(act.PowerOn) == []
    two_kinds.pass_time(1.0)
    assert two_kinds.one(act.PowerOn) == act.PowerOn(1, SMALL)


def test_last_host_that_holds_a_cell_which_waits_is_not_drained(two_kinds: Any) -> None:
    two_kinds.heartbeat("p1", gpus=2, gpu_memory_bytes=80)
    two_kinds.send(ev.HostsProvided(frozenset({HostId("p1")}), frozenset({HostId("p1")}), (SMALL, LARGE)))
    busy = two_kinds.lease("x0", "s0", gpus=2, device_bytes=150)
    two_kinds.run("x1", "s0", device_bytes=50)
    two_kinds.finish(busy)
    assert two_kinds.one(act.GrantLease).lease.host_id == "p1"
    two_kinds.granted(two_kinds.one(act.GrantLease).lease)
    lease = two_kinds.one(act.NotifyLease).lease
    two_kinds.report(lease, ExecutionState.STARTED)
    two_kinds.run("x2", "s0", device_bytes=50)
    for _ in range(40):
        two_kinds.pass_time(20.0)
        assert two_kinds.all(act.DrainHost) == []
    two_kinds.finish(lease)
    two_kinds.granted(two_kinds.one(act.GrantLease).lease)
    two_kinds.finish(two_kinds.one(act.NotifyLease).lease)
    for _ in range(3):
        two_kinds.pass_time(20.0)
    assert [host.host_id for host in two_kinds.scheduler.state.hosts] == ["h0"]


def test_host_of_another_kind_goes_where_no_more_may_be_started_and_is_not_taken_back_for_later_cells(
    new_rig: Any,
) -> None:
    rig = new_rig(
        hosts_min=1, hosts_max=1, gpus_per_host=2, headroom_hosts=0, stop_heartbeats=0, heartbeat_suspect_s=900.0,
        heartbeat_dead_s=1000.0)
    owned = frozenset({HostId("h0")})
    rig.send(ev.HostsProvided(owned, owned, (SMALL, LARGE)))
    rig.heartbeat("h0", gpus=2, gpu_memory_bytes=24)
    busy = rig.lease("x0", "s0")
    rig.run("x1", "s1", device_bytes=50)
    rig.pass_time(1.0)
    assert rig.one(act.DrainHost).host_id == "h0"
    rig.run("x2", "s2")
    assert rig.all(act.GrantLease) == rig.all(act.UndrainHost) == []
    rig.finish(busy)
    rig.pass_time(1.0)
    assert rig.one(act.StopHost).host_id == "h0"
    rig.send(ev.HostEnded(HostId("h0")))
    rig.pass_time(1.0)
    assert rig.one(act.PowerOn) == act.PowerOn(1, LARGE)
    rig.heartbeat("p1", gpus=2, gpu_memory_bytes=80)
    assert [action.lease.execution_id for action in rig.all(act.GrantLease)] == ["x1", "x2"]


@pytest.mark.parametrize("hosts_max", [0, 40])
@pytest.mark.parametrize(("device_bytes", "peak_bytes"), [(1, 0), (1, 60), (1, 900), (50, 0)])
def test_look_at_the_queue_goes_through_the_hosts_not_once_a_run(
    new_rig: Any, monkeypatch: pytest.MonkeyPatch, hosts_max: int, device_bytes: int, peak_bytes: int,
) -> None:
    looked_at = [0]
    walk = HostTable.__iter__

    def counted(self: HostTable) -> Iterator[Any]:
        for host in walk(self):
            looked_at[0] += 1
            yield host

    def hosts_looked_at(runs: int) -> int:
        rig = new_rig(
            hosts_min=0, hosts_max=hosts_max, gpus_per_host=1, heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3,
            start_timeout_s=9e3)
        rig.send(ev.HostsProvided(frozenset(), frozenset(), (HostShape(1, 24), HostShape(1, 80))))
        for number in range(10):
            rig.heartbeat(f"h{number}", gpus=1, gpu_memory_bytes=24)
            rig.run(f"b{number}", f"b{number}")
        rig.heartbeat("h9x", gpus=1, gpu_memory_bytes=80, draining=True)
        for number in range(runs):
            rig.run(f"x{number}", f"s{number}", device_bytes=device_bytes + number % 7, peak_bytes=peak_bytes + number)
        rig.pass_time(1.0)
        assert len(rig.scheduler.state.queue) == runs
        looked_at[0] = 0
        rig.pass_time(6.0)
        return looked_at[0]

    monkeypatch.setattr(HostTable, "__iter__", counted)
    # A few times more at most, and not once a run.
    assert hosts_looked_at(50) - hosts_looked_at(5) <= 5 * 11
