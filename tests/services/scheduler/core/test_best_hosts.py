"""Hosts by a key that changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import HostId
from looseleaf.services.scheduler.core.best_hosts import BestHosts

HOSTS = st.sampled_from([HostId(f"h{n}") for n in range(6)])


@given(st.lists(st.tuples(HOSTS, st.none() | st.integers(0, 3)), max_size=60), st.sets(HOSTS))
def test_first_is_the_least_accepted_key_after_any_changes(
    changes: list[tuple[HostId, int | None]], refused: set[HostId],
) -> None:
    best, keys = BestHosts(), {}
    for host_id, key in changes:
        best.put(host_id, key)
        keys[host_id] = key
        known = sorted((value, name) for name, value in keys.items() if value is not None)
        assert len(best) == len(known)
        accepted = [name for _value, name in known if name not in refused]
        assert best.first(lambda name: name not in refused) == (accepted[0] if accepted else None)
        assert best.first(lambda _name: True) == (known[0][1] if known else None)


def test_outdated_keys_do_not_pile_up() -> None:
    best = BestHosts()
    for number in range(10_000):
        best.put(HostId("h0"), number)
    assert len(best._heap) <= 4 * len(best) + 64


@given(st.lists(st.tuples(st.sampled_from(["h0", "h1", "h2"]), st.one_of(st.none(), st.integers(0, 9))), max_size=40))
def test_hosts_up_to_a_key_are_taken_out_once(changes: list[tuple[str, int | None]]) -> None:
    hosts, keys = BestHosts(), {}
    for number, (host, key) in enumerate(changes):
        hosts.put(HostId(host), key)
        keys[host] = key
        if number % 3 == 2:
            due = {name for name, at in keys.items() if at is not None and at <= 4}
            assert sorted(hosts.take_up_to(4)) == sorted(due)
            keys.update(dict.fromkeys(due))
