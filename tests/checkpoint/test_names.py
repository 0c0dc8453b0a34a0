from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.checkpoint.names import HiddenNames


class Shell(SimpleNamespace):
    """As IPython's before the first cell."""

    def __init__(self) -> None:
        inputs: list[str] = [""]
        results: dict[int, Any] = {}
        super().__init__(user_ns={"_": "", "__": "", "___": "", "__name__": "__main__"})
        self.user_ns |= {"In": inputs, "_ih": inputs, "Out": results, "_oh": results, "_dh": [], "open": open}
        self.user_ns |= {"get_ipython": self.get_ipython}
        self.user_ns_hidden = {"quit": 1, "get_ipython": self.get_ipython}

    def get_ipython(self) -> Shell:
        return self


@pytest.mark.parametrize(
    "name", ["_i", "_ii", "_iii", "_i7", "_i12", "_ih", "_oh", "_dh", "In", "Out", "open", "quit", "__name__"]
)
def test_shells_own_name_is_hidden(name: str) -> None:
    assert HiddenNames(Shell())(name)


@pytest.mark.parametrize("name", ["x", "_7", "_private", "____", "_index", "_i7x", "Input", "__all__", "_exit_code"])
def test_persons_name_is_state(name: str) -> None:
    assert not HiddenNames(Shell())(name)


@pytest.mark.parametrize("name", ["In", "Out", "open", "quit", "_", "__", "__name__"])
def test_shells_name_that_a_person_binds_anew_is_state(name: str) -> None:
    shell = Shell()
    hidden = HiddenNames(shell)
    assert hidden(name)
    shell.user_ns[name] = 5
    assert not hidden(name)


def test_shells_names_stay_hidden_when_the_namespace_is_reset() -> None:
    shell = Shell()
    hidden = HiddenNames(shell)
    fresh: dict[int, Any] = {}
    shell.user_ns |= {"get_ipython": shell.get_ipython, "Out": fresh, "_oh": fresh}
    assert hidden("get_ipython") and hidden("Out")


def test_last_results_are_state_from_the_first_on() -> None:
    shell = Shell()
    hidden = HiddenNames(shell)
    assert hidden("_") and hidden("___")
    shell.user_ns |= {"_": 42}
    assert not hidden("_") and hidden("__")
