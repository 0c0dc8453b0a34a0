"""How the moves of a save are tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from looseleaf.checkpoint import saver
from looseleaf.errors import CapacityExceeded, Corrupt, LooseLeafError


class Manifest:
    """One variable of 5 bytes."""

    roots = {"a": 1}
    units = {1: SimpleNamespace(size_bytes=5)}

    def logical_bytes(self) -> int:
        return 5

    def closure(self, _names: list[str], **_: Any) -> Any:
        return SimpleNamespace(payloads=(), units=(1,))


@pytest.mark.parametrize("earlier", [[], [Corrupt("CHECKSUM_MISMATCH", "memory changed meanwhile")]])
def test_session_too_large_names_its_variables_at_every_try(
    earlier: list[LooseLeafError], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [*earlier, CapacityExceeded("SESSION_FULL", "too large", needed_bytes=5, available_bytes=3)]
    copies: list[bool] = []
    io: Any = SimpleNamespace()

    def build(copy_dirty: bool) -> Any:
        copies.append(copy_dirty)
        return SimpleNamespace(moves=None), Manifest()

    def move(*_: Any) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(saver, "move", move)
    with pytest.raises(CapacityExceeded, match="SESSION_FULL") as caught:
        saver.with_retry(build, io)
    assert caught.value.fields["largest_variables"] == ["a"]
    assert copies == [False, True][: len(earlier) + 1]
