from __future__ import annotations

import gc

import pytest

from looseleaf.kernel.collector import collector_held


@pytest.mark.parametrize("was_on", [True, False])
def test_collector_is_held_inside_and_as_it_was_behind(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with collector_held():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        with pytest.raises(KeyError), collector_held():
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
