from __future__ import annotations

import pytest

from looseleaf.cli.main import show_error
from looseleaf.error_pages import page_of
from looseleaf.errors import NotFound


def test_page_is_that_of_the_checkout_or_of_the_place_where_it_is_served() -> None:
    assert page_of("NO_CLUSTER", {}) == "docs/errors.md#NO_CLUSTER"
    served = {"LOOSELEAF_DOCS_URL": "https://docs.example.org/looseleaf/"}
    assert page_of("BUG", served) == "https://docs.example.org/looseleaf/errors.html#BUG"


@pytest.mark.parametrize("name", ["ValueError", "KeyboardInterrupt", "", "E x", "ünknown"])
def test_what_is_no_reason_has_no_page(name: str) -> None:
    assert page_of(name, {}) == ""


def test_command_line_names_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(NotFound("SESSION_UNKNOWN", "there is no such session"))
    assert capsys.readouterr().err.splitlines()[1] == "looseleaf: see docs/errors.md#SESSION_UNKNOWN"
