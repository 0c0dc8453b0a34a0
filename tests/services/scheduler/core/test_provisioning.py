"""How many hosts there are: by demand, never fewer than run cells, never more than allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState, WorkerStage
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.meters import Peak
from looseleaf.services.scheduler.core.provisioning import target_gpus
from tests.services.scheduler.core.conftest import Rig

SMALL = {
    "hosts_min": 1, "hosts_max": 4, "gpus_per_host": 2, "demand_peak_s": 20.0, "headroom_hosts": 0,
    "power_off_after_s": 10.0, "drain_busy_after_s": 15.0, "boot_timeout_s": 60.0, "boot_retry_s": 5.0,
    "heartbeat_suspect_s": 900.0, "heartbeat_dead_s": 1000.0, "stop_heartbeats": 0,
}


@pytest.fixture
def small(new_rig: Any) -> Any:
    """One host of two GPUs; up to four may be asked for."""
    made = new_rig(**SMALL)
    made.heartbeat("h0", gpus=2)
    return made


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 50)), min_size=1, max_size=40))
def test_peak_is_the_highest_value_of_the_window(steps: list[tuple[float, int]]) -> None:
    peak, now_s, values = Peak(30.0), 0.0, []
    for pause_s, value in steps:
        now_s += pause_s
        values.append((now_s, value))
        assert peak.add(value, now_s) == max(v for at_s, v in values if now_s - at_s <= 30.0)


@given(st.floats(0, 1000), st.floats(0, 2), st.integers(0, 3), st.integers(1, 8))
def test_target_is_whole_hosts_that_hold_the_peak_within_the_bounds(
    peak: float, share: float, headroom: int, gpus_per_host: int,
) -> None:
    limits = Limits(
        hosts_min=2, hosts_max=20, gpus_per_host=gpus_per_host, headroom_share=share, headroom_hosts=headroom)
    target = target_gpus(peak, limits)
    assert target % gpus_per_host == 0
    assert 2 <= target // gpus_per_host <= 20
    assert target == 20 * gpus_per_host or target >= peak * (1 + share) - 1e-6


def test_nothing_is_started_or_ended_unless_hosts_max_is_set(rig: Any) -> None:
    for number in range(9):
        rig.run(f"x{number}", f"s{number}")
    assert rig.pass_time(2.0) == []


def test_waiting_runs_power_hosts_on_up_to_the_limit_and_once_only(small: Any) -> None:
    for number in range(5):
        small.run(f"x{number}", f"s{number}")
    small.pass_time(1.0)
    assert small.one(act.PowerOn).count == 2
    small.pass_time(1.0)
    assert small.all(act.PowerOn) == []
    for number in range(5, 30):
        small.run(f"x{number}", f"s{number}")
    small.pass_time(1.0)
    assert small.one(act.PowerOn).count == 1


def test_run_that_waits_for_its_own_session_is_no_demand(small: Any) -> None:
    for number in range(6):
        small.run(f"x{number}", "s0")
    small.pass_time(1.0)
    assert small.all(act.PowerOn) == []


def test_people_who_wait_for_the_first_host_are_told_of_its_start(new_rig: Any) -> None:
    rig = new_rig(**SMALL)
    rig.run("x1")
    rig.pass_time(1.0)
    assert rig.one(act.PowerOn).count == 1
    assert [told.reason for told in rig.all(act.NotifyQueue)] == ["A GPU host is being started."]


def test_host_that_never_boots_is_asked_for_again_after_its_time(small: Any) -> None:
    for number in range(4):
        small.run(f"x{number}", f"s{number}")
    small.pass_time(1.0)
    assert small.one(act.PowerOn).count == 1
    small.pass_time(59.0)
    assert small.all(act.PowerOn) == []
    small.pass_time(2.0)
    small.pass_time(5.0)
    assert small.one(act.PowerOn).count == 1


def test_hosts_that_are_on_their_way_at_the_start_are_waited_for(new_rig: Any) -> None:
    rig = new_rig(**{**SMALL, "provision_wait_s": 30.0})
    rig.pass_time(29.0)
    assert rig.all(act.PowerOn) == []
    rig.pass_time(1.0)
    assert rig.one(act.PowerOn).count == 1


def test_refused_power_on_is_tried_again_after_a_pause(small: Any) -> None:
    for number in range(4):
        small.run(f"x{number}", f"s{number}")
    small.pass_time(1.0)
    small.send(ev.PowerOnFailed(1, "NO_MORE_HOSTS"))
    small.pass_time(1.0)
    assert small.all(act.PowerOn) == []
    small.pass_time(5.0)
    assert small.one(act.PowerOn).count == 1


def test_kind_that_cannot_be_started_is_asked_for_ever_later_until_one_of_it_came(new_rig: Any) -> None:
    rig = new_rig(**SMALL)
    rig.pass_time(1.0)
    pauses_s = []
    for _ in range(6):
        assert rig.one(act.PowerOn).count == 1
        rig.send(ev.PowerOnFailed(1, "NO_MORE_HOSTS", rig.one(act.PowerOn).shape))
        failed_s = rig.now_s
        while not rig.all(act.PowerOn):
            rig.pass_time(1.0)
        pauses_s.append(rig.now_s - failed_s)
    assert pauses_s == [5, 10, 20, 40, 60, 60]
    rig.heartbeat("h0", gpus=2)
    for number in range(4):
        rig.run(f"x{number}", f"s{number}")
    rig.pass_time(1.0)
    rig.send(ev.PowerOnFailed(1, "NO_MORE_HOSTS", rig.one(act.PowerOn).shape))
    rig.pass_time(5.0)
    assert rig.one(act.PowerOn).count == 1


def test_surplus_is_drained_emptiest_first_after_it_lasted_and_ended_when_empty(small: Any) -> None:
    small.heartbeat("h1", gpus=2)
    lease = small.lease("x1", "s1")
    assert lease.host_id == "h0"
    small.pass_time(1.0)
    small.pass_time(9.0)
    assert small.all(act.DrainHost) == []
    small.pass_time(2.0)
    assert [type(action).__name__ for action in small.last] == ["ForgetHost", "DrainHost", "StopHost"]
    assert small.one(act.StopHost).host_id == "h1"
    assert [host.host_id for host in small.scheduler.pool(small.now_s).hosts] == ["h0"]


def test_drained_host_ends_only_after_its_cell_and_gets_no_new_one(small: Any) -> None:
    small.heartbeat("h1", gpus=2)
    leases = [small.lease(f"x{n}", f"s{n}") for n in range(3)]
    assert leases[2].host_id == "h1"
    small.finish(leases[0])
    small.finish(leases[1])
    for _ in range(40):
        small.pass_time(1.0)
        if small.all(act.DrainHost):
            break
    assert small.one(act.DrainHost).host_id == "h0"
    assert small.one(act.StopHost).host_id == "h0"
    small.report(leases[2], ExecutionState.STARTED)
    small.pass_time(30.0)
    assert small.all(act.DrainHost) == []


def test_host_with_a_lease_is_drained_only_after_a_longer_surplus(new_rig: Any) -> None:
    rig = new_rig(**{**SMALL, "drain_busy_after_s": 100.0})
    rig.heartbeat("h0", gpus=2)
    rig.heartbeat("h1", gpus=2)
    leases = [rig.lease(f"x{n}", f"s{n}") for n in range(3)]
    rig.finish(leases[0])
    for lease in leases[1:]:
        rig.report(lease, ExecutionState.STARTED)
    for _ in range(30):
        rig.pass_time(3.0)
        assert rig.all(act.DrainHost) == []
    for _ in range(15):
        rig.pass_time(3.0)
        if rig.all(act.DrainHost):
            break
    assert rig.one(act.DrainHost).host_id == "h0"
    assert rig.all(act.StopHost) == []


def test_host_with_a_kept_worker_is_not_ended(small: Any, worker: Any) -> None:
    small.heartbeat("h1", gpus=2)
    small.run("x0", "s0", gpus=2)
    small.granted(small.one(act.GrantLease).lease)
    busy = small.one(act.NotifyLease).lease
    other = small.lease("x1", "s1", gpus=2)
    small.report(busy, ExecutionState.STARTED)
    small.report(other, ExecutionState.STARTED)
    small.finish(other, worker="w1")
    small.scheduler.state.hosts.worker(HostId("h1"), WorkerId("w1")).held_until_s = 1e6
    for _ in range(50):
        small.pass_time(1.0)
        assert small.all(act.StopHost) == []


def test_host_that_was_to_go_is_taken_back_at_once_for_a_run_that_would_wait(small: Any) -> None:
    small.heartbeat("h1", gpus=2)
    first = small.lease("x0", "s0")
    second = small.lease("x1", "s1")
    third = small.lease("x2", "s2")
    small.finish(first)
    small.report(second, ExecutionState.STARTED)
    small.report(third, ExecutionState.STARTED)
    for _ in range(40):
        small.pass_time(1.0)
    assert small.scheduler.state.hosts.get(HostId("h0")).retiring
    small.run("x5", "s5")
    assert (small.one(act.GrantLease).lease.host_id, small.all(act.UndrainHost)) == ("h1", [])
    small.run("x6", "s6")
    assert small.one(act.UndrainHost).host_id == "h0"
    assert small.one(act.GrantLease).lease.host_id == "h0"
    small.pass_time(1.0)
    assert small.all(act.PowerOn) == []


def test_late_heartbeat_of_an_ended_host_is_refused_and_a_new_start_is_welcome(small: Any) -> None:
    small.heartbeat("h1", gpus=2)
    for _ in range(3):
        small.pass_time(15.0)
    assert len(small.scheduler.state.hosts) == 1
    gone = small.scheduler.state.stopped_hosts.popitem()[0]
    small.scheduler.state.stopped_hosts[gone] = "i1"
    small.heartbeat(gone, gpus=2)
    assert small.one(act.Refuse).reason == "HOST_STOPPED"
    small.heartbeat(gone, gpus=2, incarnation="i2")
    assert small.one(act.Refuse).reason == "HOST_STOPPED"
    small.send(ev.HostEnded(gone))
    small.heartbeat(gone, gpus=2)
    assert small.one(act.Refuse).reason == "HOST_STOPPED"
    small.heartbeat(gone, gpus=2, incarnation="i2")
    assert small.one(act.AnswerHeartbeat)


@given(
    st.lists(st.tuples(
        st.integers(1, 2), st.sampled_from([0, 50, 100]),
        st.lists(st.sampled_from([0, 0, 30, 60]), min_size=2, max_size=2),
        st.sampled_from(["", "", "avoided", "draining", "no answer"])), min_size=1, max_size=3),
    st.integers(1, 2), st.sampled_from([0, 20, 45, 60, 90, 200]), st.sampled_from([0, 0, 95]))
def test_host_that_was_to_go_is_taken_back_for_a_run_that_starts_there_and_for_no_other(
    going: list[tuple[int, int, list[int], str]], gpus: int, gpu_bytes: int, peak_bytes: int,
) -> None:
    rig = Rig(heartbeat_suspect_s=9e3, heartbeat_dead_s=9e3, start_timeout_s=9e3)
    hosts = rig.scheduler.state.hosts
    for number, (count, memory, used, how) in enumerate(going):
        for _ in range(2):
            rig.heartbeat(
                f"p{number}", gpus=count, gpu_memory_bytes=memory, gpu_used_bytes=tuple(used[:count]),
                draining=how == "draining")
            rig.now_s += 15.0
        host = hosts.get(HostId(f"p{number}"))
        assert host is not None
        hosts.retire(host, True)
        hosts.yielding.add(host.host_id)
        if how == "no answer":
            host.unresponsive_until = host.heartbeats + 2
    # Large enough for every cell, and full.
    rig.heartbeat("h0", gpus=2, gpu_memory_bytes=400)
    for number in range(2):
        rig.lease(f"b{number}", f"b{number}", device_bytes=400)
    rig.run("x1", gpus=gpus, device_bytes=gpu_bytes * gpus, peak_bytes=peak_bytes * gpus)
    [run] = rig.scheduler.state.runs.of_session(SessionId("s1"))
    run.avoided = {HostId(f"p{number}"): 10**6 for number, (*_shape, how) in enumerate(going) if how == "avoided"}
    hosts.yielding.clear()
    taken_back, granted = [], []
    for _ in range(8):
        rig.pass_time(6.0)
        taken_back += [action.host_id for action in rig.all(act.UndrainHost)]
        granted += [action.lease.host_id for action in rig.all(act.GrantLease)]
    assert taken_back == granted
    able = {
        HostId(f"p{number}") for number, (count, memory, used, how) in enumerate(going) if not how
        and sum(not memory or memory - used_bytes >= gpu_bytes for used_bytes in used[:count]) >= gpus}
    assert set(granted) <= able
    assert bool(granted) is bool(able)


def test_host_that_the_provider_does_not_own_stays(small: Any) -> None:
    small.heartbeat("h1", gpus=2)
    small.send(ev.HostsProvided(frozenset({HostId("h1")})))
    lease = small.lease("x1", "s1", gpus=2)
    assert lease.host_id == "h0"
    small.finish(lease)
    for _ in range(9):
        small.pass_time(15.0)
    assert [host.host_id for host in small.scheduler.state.hosts] == ["h0"]


def test_cell_that_only_an_ended_kind_of_host_can_hold_waits_for_one_like_it(new_rig: Any) -> None:
    rig = new_rig(**SMALL)
    rig.heartbeat("h0", gpus=2, gpu_memory_bytes=24)
    rig.lease("x0", "s0")
    rig.heartbeat("h1", gpus=2, gpu_memory_bytes=80)
    for _ in range(3):
        rig.pass_time(15.0)
    assert [host.host_id for host in rig.scheduler.state.hosts] == ["h0"]
    rig.run("x1", "s1", device_bytes=50)
    assert rig.all(act.Refuse) == []
    rig.run("x2", "s2", device_bytes=100)
    assert rig.one(act.Refuse).reason == "NEVER_FITS"


def test_every_provisioned_gpu_second_is_in_one_state(small: Any, worker: Any) -> None:
    small.scheduler.state.provisioned.sample({}, 0.0)
    running = small.lease("x0", "s0")
    small.report(running, ExecutionState.STARTED)
    small.pass_time(4.0)
    small.finish(running, worker="w0")
    small.heartbeat("h0", gpus=2, workers=(
        worker("w0", "s0", gpus=(0,)), worker("w1", "s1", WorkerStage.CONTEXT_READY)))
    small.pass_time(3.0)
    gpu_s = dict(small.scheduler.state.provisioned.gpu_s)
    assert gpu_s.pop("running") == 4.0
    assert gpu_s.pop("warm") == 3.0
    assert gpu_s.pop("idle") == 4.0 + 3.0
    assert not any(gpu_s.values())


def test_host_with_versions_that_are_only_staged_is_told_to_flush_and_ends_when_they_are_durable(new_rig: Any) -> None:
    rig = new_rig(**{**SMALL, "stop_heartbeats": 2})
    for host in ("h0", "h1"):
        rig.heartbeat(host, gpus=2)
    rig.lease("x0", "s0")
    rig.heartbeat("h1", gpus=2, staged_sessions=1)
    assert not rig.one(act.AnswerHeartbeat).retiring
    rig.pass_time(1.0)
    rig.pass_time(30.0)
    assert rig.one(act.DrainHost).host_id == "h1"
    for staged in (1, 0, 1, 0):
        rig.heartbeat("h1", gpus=2, staged_sessions=staged)
        assert rig.one(act.AnswerHeartbeat).retiring
        assert not [action for action in rig.pass_time(1.0) if isinstance(action, act.StopHost)]
    # The first that told of none may have been composed before a commit: the second cannot.
    rig.heartbeat("h1", gpus=2)
    rig.pass_time(1.0)
    assert rig.one(act.StopHost).host_id == "h1"


@pytest.fixture
def crowded(small: Any) -> Any:
    """One host, full, and more runs than four hosts hold; the provider owns all but the first."""
    small.send(ev.HostsProvided(frozenset({HostId("h1"), HostId("h2"), HostId("h3"), HostId("h4")}), frozenset()))
    for number in range(20):
        small.run(f"x{number}", f"s{number}")
    small.pass_time(1.0)
    assert small.one(act.PowerOn).count == 3
    return small


def started(rig: Any, *hosts: str) -> None:
    rig.send(ev.HostsStarting(tuple(HostId(host) for host in hosts)))


def test_boot_that_is_late_is_ended_and_counts_until_the_provider_has_begun_to(crowded: Any) -> None:
    crowded.heartbeat("h1", gpus=2)
    started(crowded, "h1", "h2", "h3")
    assert crowded.scheduler.state.boots.count == 2
    crowded.pass_time(60.0)
    assert {stop.host_id for stop in crowded.all(act.StopHost)} == {"h2", "h3"}
    assert crowded.all(act.PowerOn) == []
    crowded.heartbeat("h2", gpus=2)
    assert crowded.one(act.Refuse).reason == "HOST_STOPPED"
    crowded.send(ev.HostEnded(HostId("h2")))
    crowded.pass_time(5.0)
    assert crowded.one(act.PowerOn).count == 1


def test_stop_that_fails_is_ordered_again_ever_later_and_its_gpus_are_accounted_for(crowded: Any) -> None:
    started(crowded, "h1", "h2", "h3")
    crowded.heartbeat("h1", gpus=2)
    crowded.heartbeat("h2", gpus=2)
    crowded.pass_time(60.0)
    pauses_s = []
    for _ in range(8):
        crowded.send(ev.StopHostFailed(HostId("h3"), "PROVIDER_DOWN"))
        failed_s = crowded.now_s
        while not crowded.all(act.StopHost):
            crowded.pass_time(1.0)
            assert crowded.all(act.PowerOn) == []
        assert crowded.one(act.StopHost).host_id == "h3"
        pauses_s.append(crowded.now_s - failed_s)
    assert pauses_s == [2, 4, 8, 16, 32, 60, 60, 60]
    assert crowded.scheduler.state.host_ends.failing == 1
    before_s = crowded.scheduler.state.provisioned.gpu_s["idle"]
    crowded.pass_time(1.0)
    assert crowded.scheduler.state.provisioned.gpu_s["idle"] == before_s + 2


def test_provided_host_that_falls_silent_is_ended_and_counts_until_then(new_rig: Any) -> None:
    rig = new_rig(**{**SMALL, "hosts_max": 2, "heartbeat_suspect_s": 5.0, "heartbeat_dead_s": 10.0})
    rig.send(ev.HostsProvided(frozenset({HostId("h1")}), frozenset({HostId("h1")})))
    rig.heartbeat("h0", gpus=2)
    rig.heartbeat("h1", gpus=2)
    for number in range(4):
        rig.run(f"x{number}", f"s{number}")
        rig.granted(rig.one(act.GrantLease).lease)
    rig.run("x4", "s4")

    def beat_until(end_s: float) -> None:
        while rig.now_s < end_s and not rig.all(act.StopHost):
            rig.heartbeat("h0", gpus=2, leases=tuple(entry.lease for entry in rig.scheduler.state.leases.on_host("h0")))
            rig.pass_time(1.0)
            assert rig.all(act.PowerOn) == []

    beat_until(300.0)
    assert (rig.one(act.StopHost).host_id, rig.now_s) == ("h1", 120.0)
    rig.send(ev.HostEnded(HostId("h1")))
    rig.pass_time(1.0)
    assert rig.one(act.PowerOn).count == 1


@pytest.mark.parametrize(("provided", "ends"), [(True, ["h1"]), (False, [])])
def test_silent_host_with_staged_versions_is_waited_for_until_it_is_forgotten(
    new_rig: Any, provided: bool, ends: list[str],
) -> None:
    rig = new_rig(**{**SMALL, "heartbeat_suspect_s": 5.0, "heartbeat_dead_s": 10.0, "power_off_after_s": 1e6})
    owned = frozenset({HostId("h1")} if provided else ())
    rig.send(ev.HostsProvided(owned, owned))
    rig.heartbeat("h1", gpus=2, staged_sessions=1)
    rig.pass_time(11.0)
    rig.pass_time(588.0)
    assert rig.all(act.StopHost) == []
    rig.pass_time(1.0)
    assert [stop.host_id for stop in rig.all(act.StopHost)] == ends
    assert rig.scheduler.state.hosts.get(HostId("h1")) is None


def test_what_the_provider_lists_is_believed(crowded: Any) -> None:
    started(crowded, "h1", "h2", "h3")
    owned = crowded.scheduler.state.provided_hosts
    # The boot of h3 failed; h4 is of an order that an earlier life of the scheduler gave.
    crowded.send(ev.HostsProvided(owned, frozenset({HostId("h1"), HostId("h2"), HostId("h4")})))
    assert (crowded.scheduler.state.boots.count, crowded.scheduler.state.boots.failed) == (3, 1)
    crowded.pass_time(5.0)
    assert crowded.all(act.PowerOn) == []
    crowded.pass_time(60.0)
    assert {stop.host_id for stop in crowded.all(act.StopHost)} == {"h1", "h2", "h4"}
    # Somebody else ended them.
    crowded.send(ev.HostsProvided(owned, frozenset()))
    crowded.pass_time(10.0)
    assert crowded.one(act.PowerOn).count == 3
