from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.services.worker_daemon.core.generations import GenerationRules, StartZygote, StopZygote


def begun(environment_id: str = "a") -> GenerationRules:
    rules = GenerationRules()
    rules.confirmed(1, environment_id)
    return rules


def test_first_generation_is_there_before_its_zygote_is_ready() -> None:
    rules = GenerationRules()
    assert rules.newest.number == 1 and rules.seen("") == rules.glimpsed("") == []
    number = rules.fork_began()
    rules.confirmed(1, "a")
    assert rules.fork_ended(number) == [] and rules.newest.environment_id == "a"


def test_same_environment_starts_nothing() -> None:
    rules = begun()
    assert rules.seen("a") == rules.glimpsed("a") == []


def test_install_starts_a_generation_and_ends_an_idle_old_one() -> None:
    rules = begun()
    assert rules.seen("b") == [StartZygote(2), StopZygote(1)]
    assert rules.newest.number == 2 and rules.seen("b") == []


def test_old_zygote_ends_only_when_its_last_fork_is_answered() -> None:
    rules = begun()
    first, second = rules.fork_began(), rules.fork_began()
    assert rules.seen("b") == [StartZygote(2)]
    assert rules.fork_began() == 2
    assert rules.fork_ended(first) == []
    assert rules.fork_ended(second) == [StopZygote(1)]
    assert rules.fork_ended(2) == []


def test_going_back_to_an_earlier_environment_is_a_generation_too() -> None:
    rules = begun()
    rules.seen("b")
    assert rules.seen("a") == [StartZygote(3), StopZygote(2)]


def test_glance_at_an_installer_at_work_starts_nothing() -> None:
    rules = begun()
    assert rules.glimpsed("half") == rules.glimpsed("more") == rules.glimpsed("all") == []
    assert rules.glimpsed("all") == [StartZygote(2), StopZygote(1)]


def test_zygote_that_says_what_it_imported_from_needs_no_other() -> None:
    rules = begun()
    rules.seen("b")
    # It found a folder that the daemon did not know of.
    rules.confirmed(2, "b and more")
    assert rules.seen("b and more") == []


def test_late_word_of_an_old_generation_changes_nothing() -> None:
    rules = begun()
    rules.fork_began()
    rules.seen("b")
    rules.confirmed(1, "c")
    assert rules.newest.environment_id == "b"


step = st.tuples(st.sampled_from(["seen", "glimpsed", "fork", "answer"]), st.sampled_from("abc"))


@given(st.lists(step, max_size=40))
def test_only_the_newest_forks_and_none_with_a_fork_under_way_is_ended(steps: list[tuple[str, str]]) -> None:
    rules, alive, forks = begun(), {1}, []
    for step, environment_id in steps:
        actions = []
        if step == "fork":
            forks.append(rules.fork_began())
            assert forks[-1] == max(alive)
        elif step == "answer" and forks:
            actions = rules.fork_ended(forks.pop(0))
        elif step in ("seen", "glimpsed"):
            actions = getattr(rules, step)(environment_id)
            assert step == "glimpsed" or rules.newest.environment_id == environment_id
        for action in actions:
            if isinstance(action, StartZygote):
                assert action.number == max(alive) + 1
                alive.add(action.number)
            else:
                assert action.number not in forks and action.number != max(alive)
                alive.remove(action.number)
        # What is neither newest nor waited for is gone.
        assert alive == {max(alive), *forks}
