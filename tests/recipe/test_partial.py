from __future__ import annotations

import pytest

from looseleaf.recipe import NameFacts, Payload
from looseleaf.recipe.partial import imported_in, token_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.b(c", {"a", "c"}),
        ("x = 'y z' # w", set()),
        ('f"{a} b {c.d', {"a"}),
        ("'''open a", set()),
        ('s = "a\\" b" + c', {"c"}),
        ("g(a=b, c==d)", {"g", "b", "c", "d"}),
        ("x += y", {"x", "y"}),
        ("def g(a):", {"a"}),
        ("with a as b:", {"with", "a"}),
        ("ab.cd.ef", {"ab"}),
    ],
)
def test_token_names_skip_strings_comments_and_attributes(text: str, names: set[str]) -> None:
    assert token_names(text) - {"f"} == names


def test_imported_in_reads_unfinished_lines() -> None:
    assert imported_in("import a.b as c, d\nfrom e.f import (g,\n") == {"a.b", "d", "e.f"}


def test_partial_text_needs_live_names_and_what_their_code_reads(ask) -> None:
    cells = ["a = 1", "def f(): return a", "other = 2"]
    recipe = ask("y = f(", *cells, editing=True).recipe
    assert recipe.partial
    assert recipe.names == ("a", "f")


def test_partial_text_keeps_the_prefix_that_parses(ask) -> None:
    recipe = ask("import numpy as np\nx = np.zeros(n)\nfor i in x", "n = x = 3", editing=True).recipe
    assert recipe.partial
    assert recipe.names == ("n",)
    assert recipe.imports == ("numpy",)


def test_partial_text_at_run_is_a_cpu_cell(ask) -> None:
    headers = {"model": NameFacts(payloads={1: Payload("cuda:0", 1 << 30)})}
    assert ask("model(x", headers=headers).recipe.label == "cpu"
    editing = ask("model(x", headers=headers, editing=True).recipe
    assert editing.label == "gpu"
    assert editing.confidence <= 0.5


def test_partial_text_keeps_an_override(ask) -> None:
    assert ask("%%gpu\nfor x in", editing=True).recipe.label == "gpu"


def test_partial_very_long_text_is_scanned(ask) -> None:
    recipe = ask("a + " * 150_000, "a = 1", editing=True).recipe
    assert (recipe.partial, recipe.names) == (True, ("a",))
