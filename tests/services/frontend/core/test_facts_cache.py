from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.ids import SessionId
from looseleaf.recipe import NameFacts
from looseleaf.services.frontend.core.facts_cache import FactsCache, StateFacts

NAMES_MAX = 10


def facts(version: int, names: int) -> StateFacts:
    return StateFacts(1, version, {f"x{number}": NameFacts() for number in range(names)})


def test_least_recently_used_session_is_forgotten_first() -> None:
    cache = FactsCache(NAMES_MAX)
    for session in ("s-1", "s-2"):
        cache.put(SessionId(session), facts(1, 5))
    assert cache.get(SessionId("s-1")) is not None
    cache.put(SessionId("s-3"), facts(1, 5))
    assert [cache.get(SessionId(name)) is not None for name in ("s-1", "s-2", "s-3")] == [True, False, True]


def test_state_larger_than_the_cache_replaces_the_old_one_by_nothing() -> None:
    cache = FactsCache(NAMES_MAX)
    cache.put(SessionId("s-1"), facts(1, 5))
    cache.put(SessionId("s-1"), facts(2, NAMES_MAX + 1))
    assert cache.get(SessionId("s-1")) is None


@given(st.lists(st.tuples(st.sampled_from(["s-1", "s-2", "s-3"]), st.integers(0, 12), st.booleans()), max_size=30))
def test_cache_never_holds_more_names_than_its_limit(steps: list[tuple[str, int, bool]]) -> None:
    cache = FactsCache(NAMES_MAX)
    for version, (name, names, dropped) in enumerate(steps):
        session = SessionId(name)
        if dropped:
            cache.drop(session)
        else:
            cache.put(session, facts(version, names))
        held = [found for key in ("s-1", "s-2", "s-3") if (found := cache.get(SessionId(key))) is not None]
        assert sum(len(found.names) for found in held) == cache._names <= NAMES_MAX
