"""Reading a text gives no warning, and takes none from a cell that runs meanwhile."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.recipe import derive_recipe
from looseleaf.recipe.log import ExecutionLog
from looseleaf.recipe.tree import UNPARSEABLE, parse

WARNED_OF = [
    r"path = 'C:\data'", r"b'\u1234'", "'\\9'", "'\\777'", "x = 0x1for y in z", "1if x else 2", "0or 1", "x = 1.in y",
    "f'\\d{x}'", "!ls \\d\n'\\d'", "a = 1\x0cb = '\\q'", "exec('\\d')", "%timeit '\\d'",
]  # fmt: skip
# What they are made of, and what stands around it.
SMALL = [*"\\'\"dqux019.or ifin=a\n\x0c", "if ", "or ", "for ", "0x1", "1e5", "\\8", "'\\", "x = "]
PIECES = st.lists(st.sampled_from(SMALL), max_size=9).map("".join)


def recipe_of(text: str) -> None:
    derive_recipe(text, cell_id="c", log=ExecutionLog(), headers=None, version=0, editing=False)


@pytest.fixture
def no_filters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse() -> None:
        raise AssertionError("the process's filters of warnings were touched")

    monkeypatch.setattr(warnings, "catch_warnings", refuse)
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("text", WARNED_OF)
def test_recipe_of_a_text_that_python_warns_of_gives_no_warning(text: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        recipe_of(text)
    assert told == []


@given(PIECES)
def test_parse_gives_no_warning_whatever_the_text(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            parse(text)
        except UNPARSEABLE as error:
            # A warning turned into an error would refuse what is Python.
            warnings.simplefilter("ignore")
            with pytest.raises(type(error)):
                ast.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = '\\n\\t\\x41'", "for i in range(10): pass", "%time a1if = 3", "x[1:2], 10, 3.5e-2", "(1)if x else y",
        "!ls {x}",
    ],
)  # fmt: skip
def test_recipe_of_an_ordinary_text_leaves_the_filters_of_warnings_alone(no_filters: None, text: str) -> None:
    recipe_of(text)
