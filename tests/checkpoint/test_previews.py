from __future__ import annotations

import pytest

from looseleaf.checkpoint.previews import plain_flag, preview_of


@pytest.mark.parametrize("value", [True, 3, 2.5, "cuda", None])
def test_plain_flag_of_a_small_plain_value_is_the_value(value: object) -> None:
    assert plain_flag(value) == (True, value)


@pytest.mark.parametrize("value", [1 << 70, "x" * 1000, "\ud800", [1], {}, object(), b"x"])
def test_plain_flag_of_anything_else_is_none(value: object) -> None:
    assert plain_flag(value) == (False, None)


def test_plain_flag_of_a_torch_device_is_its_string() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert plain_flag(torch.device("cuda", 1)) == (True, "cuda:1")


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("a person's code was run")


LOUD = Loud()

@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda: 1, "()"), (lambda a, b=2: a, "(a, b=2)"), (lambda a, /, b, *c, d, e=(1, 2), **f: a, None),
        (lambda *, k: k, "(*, k)"), (lambda a=LOUD, *b: a, "(a=Loud object, *b)"), (lambda a, /: a, "(a, /)"),
    ],
)  # fmt: skip
def test_preview_of_a_function_has_its_parameters(function: object, shown: str | None) -> None:
    assert preview_of(function) == f"function <lambda>{shown or '(a, /, b, *c, d, e=(1, 2), **f)'}"


def test_preview_of_a_function_that_its_defaults_hold_ends() -> None:
    def held(a: object = {"x": []}) -> None: ...

    held.__defaults__[0]["x"] = held  # type: ignore[index]
    held.__defaults__ = (*held.__defaults__, (held,))  # type: ignore[misc]
    assert preview_of(held).startswith("function held(")
