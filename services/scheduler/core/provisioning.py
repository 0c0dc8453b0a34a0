"""How many hosts there should be (design §6): follows demand, drains the emptiest, never ends a running cell.

Demand in GPUs = leases + runs that wait + speculative workers on GPUs, these up to the headroom only. The target is its
peak in the last `demand_peak_s`, plus headroom, in whole hosts of the usual kind. Beside it a host of the right kind is
started for each run that no host could serve with its leases, however many GPUs there are (`unserved`); where no more
may be started one that does not help goes (`making_way`). Looked at with ticks only. Off while `hosts_max` is 0.
"""

from __future__ import annotations

import math
from collections import Counter

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.actions import DrainHost, PowerOn, StopHost, UndrainHost
from looseleaf.services.scheduler.core.events import HostsProvided, HostsStarting
from looseleaf.services.scheduler.core.fitting import may_end
from looseleaf.services.scheduler.core.granting import waiting_runs
from looseleaf.services.scheduler.core.hosts import Host, Liveness
from looseleaf.services.scheduler.core.limits import Limits
from looseleaf.services.scheduler.core.making_way import host_to_go, last_of_its_kind
from looseleaf.services.scheduler.core.queue import Run
from looseleaf.services.scheduler.core.state import State
from looseleaf.services.scheduler.core.unserved import Unserved, unserved


def target_gpus(peak_gpus: float, limits: Limits) -> int:
    """GPUs that should be there: whole hosts of `gpus_per_host`, between `hosts_min` and `hosts_max` hosts."""
    needed = peak_gpus * (1.0 + limits.headroom_share) / limits.gpus_per_host
    # A share such as 1.1 x 10 must not become 12 hosts by rounding.
    hosts = math.ceil(needed - 1e-9) + limits.headroom_hosts
    return min(max(hosts, limits.hosts_min), limits.hosts_max) * limits.gpus_per_host


def provision(state: State, speculative_gpus: int, now_s: float) -> None:
    """One look at demand and hosts."""
    limits = state.limits
    if not limits.hosts_max or not state.ready:
        return
    boots = state.boots
    living = [host for host in state.hosts.with_gpus() if not host.dead(now_s, limits)]
    boots.drop(host.host_id for host in living)
    for host_id, shape in boots.expire(now_s):
        _order_end(state, host_id, shape.gpu_count)
    for host_id in state.host_ends.due(now_s):
        state.act(StopHost(host_id))
    _end_silent(state, now_s)
    bounded = min(speculative_gpus, limits.headroom_hosts * limits.gpus_per_host)
    waiting = waiting_runs(state, now_s)
    waiting_gpus = sum(run.recipe.gpu_count for run in waiting)
    target = target_gpus(state.demand.add(state.leases.gpus + waiting_gpus + bounded, now_s), limits)
    staying = [host for host in living if not host.retiring and not host.draining]
    missing = unserved(state, staying, waiting, now_s) if waiting else []
    displacing = [one.run for one in missing if boots.may_displace(one.shape, now_s)]
    if not displacing:
        # Whoever was to make way for others may be taken back.
        state.hosts.yielding.clear()
    have = sum(host.gpu_count for host in staying) + boots.gpus
    if have < target or missing:
        if state.restored_at_s is not None and now_s - state.restored_at_s < limits.provision_wait_s:
            return
        _grow(state, living, missing, target - have, now_s)
    if have >= target:
        _shrink(state, staying, have - target, now_s)
    else:
        state.surplus_since_s = None
    if displacing:
        _make_way(state, living, displacing, waiting, now_s)
    for host in living:
        if host.retiring and _may_stop(state, host, now_s):
            _stop(state, host, now_s)


def hosts_starting(state: State, event: HostsStarting, now_s: float) -> None:
    """The boots have names now; a host that was quicker than the provider's answer is there already."""
    if state.provided_hosts is not None:
        state.provided_hosts |= set(event.host_ids)
    for host_id in event.host_ids:
        host = state.hosts.get(host_id)
        if host is None or host.liveness(now_s, state.limits) is Liveness.DEAD:
            state.boots.started(host_id, event.shape, now_s)


def hosts_provided(state: State, event: HostsProvided, now_s: float) -> None:
    """What the provider says of its hosts is the truth: boots that failed, and hosts that nobody here knew of."""
    news = event.host_ids != state.provided_hosts or (event.running is not None and not state.provider_listed)
    state.provided_hosts = event.host_ids
    if event.running is None:
        return
    state.provider_listed = True
    for host in state.hosts.with_gpus():
        if may_end(state, host):
            state.shapes.learn(host.shape)
    if state.shapes.offer(event.shapes) or news:
        state.capacity_changed = state.dirty = True
    state.host_ends.keep(event.running)
    state.boots.keep(event.running, now_s)
    for host_id in sorted(event.running):
        if state.hosts.get(host_id) is None and host_id not in state.host_ends:
            state.boots.found(host_id, now_s)


def forget_host(state: State, host: Host, now_s: float) -> None:
    """A host that was dead for long; one that may be paid for is ended."""
    if state.limits.hosts_max and may_end(state, host):
        _stop(state, host, now_s)
    else:
        state.drop_host(host.host_id)


def _end_silent(state: State, now_s: float) -> None:
    """Ends hosts whose daemons hang or are cut off: their leases have ended, and they are paid for."""
    for host in _silent(state):
        waits = host.staged_sessions or state.leases.on_host(host.host_id)
        if not waits and now_s - host.last_seen_s >= state.limits.silent_stop_after_s:
            _stop(state, host, now_s)


def _silent(state: State) -> list[Host]:
    return [host for host in state.hosts if not host.alive and may_end(state, host)]


def _grow(state: State, living: list[Host], missing: list[Unserved], missing_gpus: int, now_s: float) -> None:
    """Asks for hosts that runs wait for; takes hosts back that were to go, the fullest first; then asks for others."""
    # A kind that failed takes what others leave, whoever comes first: it may fail again.
    missing = sorted(missing, key=lambda one: state.boots.fails(one.shape))
    orders = Counter([one.shape for one in missing[: max(0, _hosts_to_start(state, living))]])
    missing_gpus -= sum(shape.gpu_count * count for shape, count in orders.items())
    retiring = [
        host for host in living if host.retiring and not host.draining and host.host_id not in state.hosts.yielding]
    for host in sorted(retiring, key=lambda host: (-len(state.leases.on_host(host.host_id)), host.host_id)):
        if missing_gpus > 0:
            _retire(state, host, False)
            state.act(UndrainHost(host.host_id))
            missing_gpus -= host.gpu_count
    usual = state.shapes.usual
    more = min(math.ceil(missing_gpus / usual.gpu_count), _hosts_to_start(state, living) - orders.total())
    if more > 0 and usual not in state.boots.resting(now_s):
        orders[usual] += more
    for shape, count in orders.items():
        state.boots.order(shape, count, now_s)
        state.act(PowerOn(count, shape))
        # Those who wait are told of it.
        state.news_due = True


def _hosts_to_start(state: State, living: list[Host]) -> int:
    """How many more there may be, beside all that may be paid for, whether they are of use or not."""
    paid = len(living) + state.boots.count + len(state.host_ends) + len(_silent(state))
    return state.limits.hosts_max - paid


def _make_way(state: State, living: list[Host], displacing: list[Run], waiting: list[Run], now_s: float) -> None:
    if _hosts_to_start(state, living) > 0:
        return
    staying = [host for host in living if not host.retiring and not host.draining]
    going = [host for host in living if host.retiring]
    candidates = going + sorted(staying, key=lambda host: _emptiness(state, host))
    host = host_to_go(state, candidates, staying, displacing, waiting)
    if host is None:
        return
    if not host.retiring:
        _retire(state, host, True)
        state.act(DrainHost(host.host_id))
    state.hosts.yielding.add(host.host_id)


def _shrink(state: State, staying: list[Host], surplus_gpus: int, now_s: float) -> None:
    """Drains the emptiest hosts once the surplus has lasted; hosts that are not ours to end stay."""
    smallest = min((host.gpu_count for host in staying), default=0)
    if not staying or surplus_gpus < smallest:
        state.surplus_since_s = None
        return
    if state.surplus_since_s is None:
        state.surplus_since_s = now_s
    lasted_s = now_s - state.surplus_since_s
    if lasted_s < state.limits.power_off_after_s:
        return
    stay, runs = list(staying), list(state.runs)
    for host in sorted(staying, key=lambda host: _emptiness(state, host)):
        ripe = lasted_s >= state.limits.drain_busy_after_s or not state.leases.gpus_on(host.host_id)
        fits = may_end(state, host) and ripe and host.gpu_count <= surplus_gpus
        if fits and not last_of_its_kind(host, stay, runs):
            stay.remove(host)
            surplus_gpus -= host.gpu_count
            _retire(state, host, True)
            state.act(DrainHost(host.host_id))


def _emptiness(state: State, host: Host) -> tuple[int, int, float, HostId]:
    """Least first: leased GPUs, then workers kept for variables, then what its warm workers are worth."""
    leased = state.leases.gpus_on(host.host_id)
    kept = sum(1 for worker in host.workers.values() if worker.hold is not None)
    return leased, kept, sum(worker.eviction_priority for worker in host.workers.values()), host.host_id


def _retire(state: State, host: Host, retiring: bool) -> None:
    state.hosts.retire(host, retiring)
    state.dirty = True


def _may_stop(state: State, host: Host, now_s: float) -> bool:
    """True if nothing would be lost but what can be made ready again."""
    if state.leases.on_host(host.host_id) or state.preparations.on_host(host.host_id):
        return False
    # Versions that are only staged end with the host; what it told before its drain may be older than the last of them.
    if host.staged_sessions or host.clean_heartbeats < state.limits.stop_heartbeats:
        return False
    return not any(worker.stage.busy or now_s < worker.held_until_s for worker in host.workers.values())


def _stop(state: State, host: Host, now_s: float) -> None:
    """The host is no longer counted on, and heartbeats of this daemon that come late are refused."""
    _order_end(state, host.host_id, host.gpu_count or state.limits.gpus_per_host)
    state.stopped_hosts[host.host_id] = host.incarnation
    while len(state.stopped_hosts) > state.limits.hosts_known_max:
        state.stopped_hosts.popitem(last=False)
    for worker in host.workers.values():
        state.lose_worker(worker, now_s)
    state.drop_host(host.host_id)


def _order_end(state: State, host_id: HostId, gpu_count: int) -> None:
    """It counts as paid for until the provider has begun to end it."""
    state.host_ends.begin(host_id, gpu_count)
    state.act(StopHost(host_id))
