from __future__ import annotations

import pytest

from looseleaf.services.checkpoint_store.core import version_uses
from looseleaf.services.checkpoint_store.core.version_uses import VersionUses


def test_version_is_in_use_for_a_time_after_it_was_read() -> None:
    uses = VersionUses(100, started_s=-1_000)
    uses.read("s1", 3, 1_000)
    uses.read("s1", 4, 1_050)
    uses.read("s2", 5, 1_050)
    assert uses.of("s1", [3, 4, 5], 1_099) == {3, 4}
    assert uses.of("s1", [3, 4, 5], 1_100) == {4}
    uses.read("s1", 3, 1_100)
    assert uses.of("s1", [3, 4], 1_199) == {3} and uses.of("s1", [3], 1_200) == frozenset()


def test_every_version_is_in_use_until_it_would_have_been_told_anew() -> None:
    uses = VersionUses(100, started_s=1_000)
    assert uses.of("s1", [1, 2], 1_099) == {1, 2} and uses.of("s1", [1, 2], 1_100) == frozenset()
    assert VersionUses(0, started_s=1_000).of("s1", [1, 2], 1_000) == frozenset()


def test_uses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_uses, "USES_MAX", 2)
    uses = VersionUses(100, started_s=-1_000)
    for version in (1, 2, 1, 3):
        uses.read("s1", version, 0)
    assert uses.of("s1", [1, 2, 3], 0) == {1, 3}
