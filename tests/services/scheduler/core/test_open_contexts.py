"""Open contexts by tenant: their counts are those that a look at all of them would find."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.ids import HostId, WorkerId
from looseleaf.services.scheduler.core.open_contexts import OpenContext, OpenContexts

EXPIRY_S = 5.0
TENANTS = ("a", "b")


@settings(max_examples=60)
@given(st.lists(st.tuples(
    st.sampled_from(("add", "type", "take", "give", "look")), st.integers(0, 4), st.sampled_from(TENANTS),
    st.floats(0, 4),
), max_size=40))
def test_contexts_that_somebody_types_in_are_counted_as_a_look_at_all_would(
    steps: list[tuple[str, int, str, float]],
) -> None:
    contexts, typed, now_s = OpenContexts(EXPIRY_S), {}, 0.0
    for step, number, tenant, pause_s in steps:
        worker, now_s = WorkerId(f"w{number}"), now_s + pause_s
        if step == "add" and worker not in contexts:
            contexts.add(worker, OpenContext(HostId("h"), tenant, 1 + number % 2, now_s, now_s - number, counted=True))
            typed[worker] = (tenant, 1 + number % 2, now_s - number)
        elif step == "type":
            contexts.type_in(worker, now_s)
            if worker in typed:
                typed[worker] = (*typed[worker][:2], now_s)
        elif step == "give":
            contexts.give(worker, tenant)
            if worker in typed:
                typed[worker] = (tenant, *typed[worker][1:])
        elif step == "take":
            assert (contexts.take(worker) is None) == (typed.pop(worker, None) is None)
        else:
            for name in TENANTS:
                lately = [gpus for owner, gpus, then_s in typed.values() if owner == name and now_s - then_s < EXPIRY_S]
                assert contexts.gpus_typed_in(name, now_s) == sum(lately)
                assert contexts.others_than(name) == any(owner != name for owner, _gpus, _then_s in typed.values())
            alive = worker in typed and now_s - typed[worker][2] < EXPIRY_S
            assert contexts.typed_in(worker, now_s) == (typed[worker][1] if alive else 0)
    assert {worker for worker, _context in contexts} == set(typed)
