from __future__ import annotations

from types import SimpleNamespace

import pytest

from looseleaf.checkpoint.names import hidden_names, is_hidden


@pytest.mark.parametrize(
    "name", ["_", "__", "___", "_i", "_ii", "_iii", "_i7", "_i12", "_ih", "_oh", "_dh", "In", "Out", "exit"]
)
def test_is_hidden_shells_own_name_is_hidden(name: str) -> None:
    assert is_hidden(name, {"exit"})


@pytest.mark.parametrize("name", ["x", "_7", "_private", "____", "_index", "_i7x", "Input", "__version__", "quit"])
def test_is_hidden_persons_name_is_state(name: str) -> None:
    assert not is_hidden(name, {"exit"})


def test_hidden_names_keeps_what_the_shell_had_before_the_first_cell() -> None:
    shell = SimpleNamespace(user_ns={"get_ipython": 1}, user_ns_hidden={"quit": 2})
    hidden = hidden_names(shell)
    shell.user_ns["x"] = 3
    assert [hidden(name) for name in ("get_ipython", "quit", "x")] == [True, True, False]
