"""Small worlds that whole tests share."""

from __future__ import annotations

import pytest

from looseleaf.sim.model import Model, load_model


@pytest.fixture(scope="session")
def w1() -> Model:
    return load_model("w1")


@pytest.fixture(scope="session")
def short(w1: Model) -> Model:
    """W1, an hour and a half of which the first half is warm-up."""
    return w1.changed(hours=1.5)
