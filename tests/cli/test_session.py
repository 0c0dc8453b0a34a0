"""Tables of a session's versions."""

from __future__ import annotations

from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.cli.session import version_rows


def test_versions_that_are_no_longer_kept_are_shown_by_range() -> None:
    kept = [ListedVersion(n, n - 1, 1_000, n == 4, 2048, 3, f"x-{n}") for n in (9, 8, 4, 2)]
    rows = version_rows(kept, whole=True)
    assert [(row[0], row[5] == "no longer kept") for row in rows] == [
        (9, False), (8, False), ("5-7", True), (4, False), ("3", True), (2, False), ("1", True),
    ]  # fmt: skip
    assert rows[0][2:5] == ["no", 3, "2.0 KiB"] and rows[3][2] == "yes" and rows[0][6] == "x-9"
    lazy = ListedVersion(1, 0, 0, False, 2048, 1, "x", 3 << 20)
    assert version_rows([lazy], whole=True)[0][4] == "2.0 KiB, 3.0 MiB lazy"
    assert version_rows(kept, whole=False)[-1][0] == 2
